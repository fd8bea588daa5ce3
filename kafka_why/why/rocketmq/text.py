"""Formats a RocketMQ group's report as text, with a duplicate client id first because it is the worst
fault.
"""

from collections.abc import Sequence

from kafka_why.rocketmq_group import TO_DO_DUPLICATE, TO_DO_SUBSCRIPTIONS
from kafka_why.why.rocketmq.changes import places_of
from kafka_why.why.rocketmq.model import (
    Change,
    ChangeKind,
    Consumer,
    Difference,
    Report,
    Trap,
    connections_by_client,
)
from kafka_why.why.rocketmq.polled.model import SymptomKind
from kafka_why.wording import (
    INDENT,
    Clock,
    Lines,
    VisibleText,
    columns,
    count,
    duration_text,
    listing,
    shortened,
    tally,
    trigger_text,
    visible_text,
)

MAX_CHANGES = 20

_QUEUES = (
    "each client computes its own share and does not report it, so the history has no queues; "
    "why GROUP --namesrv ADDRESSES asks the clients"
)
_POLLED_QUEUES = "each client computes its own share; what it holds is below, by polls"
# For these kinds the first line of a change contains the whole reason.
_EXPLAINED_BY_KIND = (ChangeKind.CONNECTED, ChangeKind.NOTIFIED)
# RocketMQ never sends a notification for these kinds. For other kinds the group's configuration decides.
_NEVER_NOTIFIED = {
    ChangeKind.EXPIRED: "none: the other clients notice when their own timers fire (RocketMQ's: every 20 s)",
    ChangeKind.REPLACED: "none, although a client id changed: the others notice when their own timers fire",
    ChangeKind.LOCKS: None,
    ChangeKind.MODE: None,
}


def report_text(report: Report, clock: Clock) -> VisibleText:
    """Return the summary, then the changes in order of time, at most the last MAX_CHANGES."""
    blocks: list[str] = [visible_text([_headline(report, clock), *columns(_summary(report, clock))])]
    shown = report.changes[-MAX_CHANGES:]
    hidden = len(report.changes) - len(shown)
    if hidden:
        blocks.append(f"({hidden} earlier changes are not shown: see them with -o json)")
    blocks += [_change_text(change, report, clock) for change in shown]
    return visible_text(blocks, "\n\n")


def _headline(report: Report, clock: Clock) -> str:
    zone = clock.zone(report.now_ms)
    now = _harmful_traps(report)
    if now:
        named = [
            f"{_connections_text(trap.client_id, trap.places)} since {clock.time(trap.from_ms)} {zone}"
            for trap in now
        ]
        return f"Group {report.group_id} of RocketMQ has a DUPLICATE CLIENT ID: {'; '.join(named)}"
    kinds = [symptom.kind for symptom in report.symptoms if symptom.kind is not SymptomKind.EXPIRED]
    if others := list(dict.fromkeys(map(str, kinds))):
        return f"Group {report.group_id} of RocketMQ has {', '.join(others)}"
    since = f"since {clock.time(report.consumers_since_ms)} {zone}"
    clients = len({consumer.client_id for consumer in report.consumers})
    least = "" if report.complete else "at least "
    if not clients and report.complete:
        return f"Group {report.group_id} of RocketMQ has no consumers {since}"
    return f"Group {report.group_id} of RocketMQ has {least}{count(clients, 'client')} {since}"


def _summary(report: Report, clock: Clock) -> Lines:
    if _harmful_traps(report):
        yield "To do", TO_DO_DUPLICATE
    for symptom in report.symptoms:
        if symptom.kind is not SymptomKind.DUPLICATE:
            since = "" if symptom.since_ms is None else f", since {clock.time(symptom.since_ms)}"
            yield "Fault", f"{symptom.kind}{since}: {symptom.reason}"
            yield "To do", symptom.to_do
    if report.consumers:
        yield "Clients", _clients(report.consumers)
    if report.topics:
        yield "Topics", shortened(report.topics)
    yield "Queues", _QUEUES if report.polled is None else _POLLED_QUEUES
    for topic, mode in report.request_modes.items():
        yield "", f"but the coordinator assigns the queues of {topic} to clients that query it: {mode}"
    since_ms = report.from_ms if report.since_ms is None else max(report.since_ms, report.from_ms)
    notified = f"all connections were notified {count(report.notifications, 'time')}"
    yield "Changes", f"{len(report.changes)} since {clock.time(since_ms)}; {notified}"
    yield from tally("Causes", [(c.changes, c.kind, c.by_client) for c in report.counts])
    traps = [
        f"{_connections_text(t.client_id, t.places)}, {_lasted_text(t, report.now_ms)}" for t in report.traps
    ]
    yield from listing("Duplicates", traps)
    differences = [f"{_lasted_text(d, report.now_ms)}: {d.reason}" for d in report.differences]
    yield from listing("Differences", differences)
    for note in report.notes:
        yield "Note", note


def _harmful_traps(report: Report) -> list[Trap]:
    return [trap for trap in report.traps if trap.to_ms is None and not trap.harmless]


def _connections_text(client_id: str, connections: Sequence[str]) -> str:
    """Return a text such as `worker-1 on c1 and c4`."""
    # A large history entry omits the connections.
    return f"{client_id} on {' and '.join(connections) or 'several connections'}"


def _lasted_text(trap: Trap | Difference, now_ms: int) -> str:
    """Return how long a trap or difference lasted, and its first and last change."""
    if trap.to_ms is None:
        return f"for {duration_text(max(now_ms - trap.from_ms, 0))} now, since #{trap.began}"
    return f"for {duration_text(trap.to_ms - trap.from_ms)}, from #{trap.began} to #{trap.ended}"


def _change_text(change: Change, report: Report, clock: Clock) -> VisibleText:
    head = f"#{change.number}  {clock.time(change.at_ms)}  {_title(change)}"
    return visible_text([head, *(INDENT + line for line in columns(_details(change, report)))])


def _title(change: Change) -> str:
    """Return a text such as `client left: worker-2`. A duplicate client id has its connections."""
    if change.traps:
        named = "; ".join(
            _connections_text(duplicate.client_id, places_of(change, duplicate)) for duplicate in change.traps
        )
        return f"{change.kind}, harmless: {named}" if change.harmless else f"DUPLICATE CLIENT ID: {named}"
    names = list(dict.fromkeys(c.client_id for c in change.concerned if c.client_id is not None))
    return f"{change.kind}: {shortened(names)}" if names else str(change.kind)


def _details(change: Change, report: Report) -> Lines:
    yield from _causes(change)
    for trap in report.traps:
        if trap.began == change.number:
            yield "lasted", _lasted_text(trap, report.now_ms)
            if not trap.harmless:
                yield "to do", TO_DO_DUPLICATE
    for client_id in dict.fromkeys(duplicate.client_id for duplicate in change.released):
        yield "over", f"client id {client_id} is on a single connection again"
    yield from _difference_lines(change, report)
    if change.topics_reason is not None and change.kind is not ChangeKind.TOPICS:
        yield "topics", change.topics_reason
    notified = _notification(change)
    if notified is not None:
        yield "notified", notified
    if change.kind not in (ChangeKind.LOCKS, ChangeKind.MODE):
        yield "clients", _clients(change.consumers) if change.consumers else "none"


def _difference_lines(change: Change, report: Report) -> Lines:
    for difference in report.differences:
        if difference.began == change.number:
            yield "differ", f"{_lasted_text(difference, report.now_ms)}: {difference.reason}"
            yield "to do", TO_DO_SUBSCRIPTIONS
        if difference.ended == change.number:
            yield "over", "all clients have the same subscriptions again"


def _causes(change: Change) -> Lines:
    """Yield the reason, the request or scan, and the connections."""
    several = len({concerned.client_id for concerned in change.concerned}) > 1
    for concerned in change.concerned if change.kind not in _EXPLAINED_BY_KIND else ():
        who = f"{concerned.client_id}: " if several and concerned.client_id else ""
        yield "why", f"{who}{concerned.reason}"
    yield "trigger", trigger_text(change.trigger)
    known = {consumer.connection: consumer for consumer in change.consumers}
    if not change.traps:
        for concerned in change.concerned:
            if concerned.connection is not None:
                at = known.get(concerned.connection)
                of = f" of {at.address} at {at.broker}" if at is not None and at.address else ""
                yield "on", f"connection {concerned.connection}{of}"


def _notification(change: Change) -> str | None:
    """Return the notification that the coordinator sent, or why it sent none, or None if none is expected."""
    if change.notification is not None:
        return change.notification
    if not change.consumers and change.complete:
        return "none: the group has no connections left"
    other = "none: the group broadcasts, or its notifications are switched off"
    return next(
        (_NEVER_NOTIFIED[kind] for kind in (change.kind, *change.also) if kind in _NEVER_NOTIFIED), other
    )


def _clients(consumers: Sequence[Consumer]) -> str:
    """Return a text such as `worker-1 twice, worker-2`, by numbers of connections."""
    times = connections_by_client(consumers)
    return shortened([_times(client_id, number) for client_id, number in times.items()])


def _times(client_id: str, number: int) -> str:
    return client_id if number == 1 else f"{client_id} {'twice' if number == 2 else f'{number} times'}"
