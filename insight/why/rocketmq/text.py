"""A RocketMQ group's report as text: a client id that several have first, for that is what hurts."""

from collections import Counter
from collections.abc import Sequence

from insight.why.clock import Clock, duration_text
from insight.why.rocketmq.model import Change, ChangeKind, Consumer, Report, Trap
from insight.why.wording import INDENT, Lines, columns, count, shortened, tally, trigger_text

MAX_CHANGES = 20

_WHAT_TO_DO = "stop one of them, or give it a client id of its own (RocketMQ's instanceName, clientIP)"
_QUEUES = "each client takes its share by itself and tells nobody: who took which is not in the history"
# Of these the first line says all that the reason does.
_TOLD_BY_KIND = (ChangeKind.CONNECTED, ChangeKind.NOTIFIED)
# What RocketMQ tells nobody of, whatever the group's configuration; of the rest it depends on that.
_NOBODY = {
    ChangeKind.EXPIRED: "nobody: the others learn of it when their own timers run (RocketMQ's every 20 s)",
    ChangeKind.REPLACED: "nobody, though the client ids changed: the others learn of it by their own timers",
    ChangeKind.LOCKS: None,
    ChangeKind.MODE: None,
}


def report_text(report: Report, clock: Clock) -> str:
    """The summary, then the changes in the order of time, at most the last MAX_CHANGES."""
    blocks = ["\n".join([_headline(report, clock), *columns(_summary(report, clock))])]
    shown = report.changes[-MAX_CHANGES:]
    hidden = len(report.changes) - len(shown)
    if hidden:
        blocks.append(f"({hidden} earlier changes are not shown: see them with -o json)")
    blocks += [_change_text(change, report, clock) for change in shown]
    return "\n\n".join(blocks) + "\n"


def _headline(report: Report, clock: Clock) -> str:
    zone = clock.zone(report.now_ms)
    now = _hurting(report)
    if now:
        named = [
            f"{_several(trap.client_id, trap.connections)} since {clock.time(trap.from_ms)} {zone}"
            for trap in now
        ]
        return f"Group {report.group_id} of RocketMQ has a DUPLICATE CLIENT ID: {'; '.join(named)}"
    since = f"since {clock.time(report.consumers_since_ms)} {zone}"
    clients = len({consumer.client_id for consumer in report.consumers})
    least = "" if report.complete else "at least "
    if not clients and report.complete:
        return f"Group {report.group_id} of RocketMQ has no consumers {since}"
    return f"Group {report.group_id} of RocketMQ has {least}{count(clients, 'client')} {since}"


def _summary(report: Report, clock: Clock) -> Lines:
    if _hurting(report):
        yield "To do", _WHAT_TO_DO
    if report.consumers:
        yield "Clients", _clients(report.consumers)
    if report.topics:
        yield "Topics", shortened(report.topics)
    yield "Queues", _QUEUES
    for topic, mode in report.request_modes.items():
        yield "", f"but those of {topic} the coordinator deals out to clients that ask: {mode}"
    since_ms = report.from_ms if report.since_ms is None else max(report.since_ms, report.from_ms)
    told = f"{count(report.notifications, 'time')} all were notified"
    yield "Changes", f"{len(report.changes)} since {clock.time(since_ms)}; {told}"
    yield from tally("Causes", [(c.changes, c.kind, c.by_client) for c in report.counts])
    for number, trap in enumerate(report.traps):
        yield (
            "" if number else "Duplicates",
            f"{_several(trap.client_id, trap.connections)}, {_lasted(trap, report.now_ms)}",
        )
    for note in report.notes:
        yield "Note", note


def _hurting(report: Report) -> list[Trap]:
    """The traps that are on, and matter."""
    return [trap for trap in report.traps if trap.to_ms is None and not trap.harmless]


def _several(client_id: str, connections: Sequence[str]) -> str:
    """`worker-1 on c1 and c4`; the connections are left out of entries that would be too large."""
    return f"{client_id} on {' and '.join(connections) or 'several connections'}"


def _lasted(trap: Trap, now_ms: int) -> str:
    """How long a trap was on, from which change to which."""
    if trap.to_ms is None:
        return f"for {duration_text(max(now_ms - trap.from_ms, 0))} now, since #{trap.began}"
    return f"for {duration_text(trap.to_ms - trap.from_ms)}, from #{trap.began} to #{trap.ended}"


def _change_text(change: Change, report: Report, clock: Clock) -> str:
    head = f"#{change.number}  {clock.time(change.at_ms)}  {_what(change)}"
    return "\n".join([head, *(INDENT + line for line in columns(_details(change, report)))])


def _what(change: Change) -> str:
    """`client left: worker-2`; of a client id that came again its connections too."""
    if change.traps:
        named = "; ".join(_several(client_id, at) for client_id, at in change.traps.items())
        return f"{change.kind}, harmless: {named}" if change.harmless else f"DUPLICATE CLIENT ID: {named}"
    names = [c.client_id for c in change.concerned if c.client_id is not None]
    return f"{change.kind}: {shortened(names)}" if names else str(change.kind)


def _details(change: Change, report: Report) -> Lines:
    yield from _causes(change)
    for trap in report.traps:
        if trap.began == change.number:
            yield "lasted", _lasted(trap, report.now_ms)
            if not trap.harmless:
                yield "to do", _WHAT_TO_DO
    for client_id in change.released:
        yield "over", f"client id {client_id} is on one connection alone again"
    if change.topics_reason is not None and change.kind is not ChangeKind.TOPICS:
        yield "topics", change.topics_reason
    told = _told(change)
    if told is not None:
        yield "told", told
    if change.kind not in (ChangeKind.LOCKS, ChangeKind.MODE):
        yield "there", _clients(change.consumers) if change.consumers else "nobody"


def _causes(change: Change) -> Lines:
    """Why it came, by which request or scan, and on which connections."""
    several = len(change.concerned) > 1
    for concerned in change.concerned if change.kind not in _TOLD_BY_KIND else ():
        who = f"{concerned.client_id}: " if several and concerned.client_id else ""
        yield "why", f"{who}{concerned.reason}"
    yield "by", trigger_text(change.trigger)
    if not change.traps:
        for concerned in change.concerned:
            if concerned.connection is not None:
                yield "on", f"connection {concerned.connection}"


def _told(change: Change) -> str | None:
    """Whom the coordinator told to rebalance."""
    if change.notification is not None:
        return change.notification
    if not change.consumers and change.complete:
        return "nobody is left to be told"
    unless = "nobody: the group broadcasts, or has its notifications switched off"
    return next((_NOBODY[kind] for kind in (change.kind, *change.also) if kind in _NOBODY), unless)


def _clients(consumers: Sequence[Consumer]) -> str:
    """`worker-1 twice, worker-2`."""
    times = Counter(consumer.client_id for consumer in consumers)
    return shortened([_times(client_id, number) for client_id, number in times.items()])


def _times(client_id: str, number: int) -> str:
    return client_id if number == 1 else f"{client_id} {'twice' if number == 2 else f'{number} times'}"
