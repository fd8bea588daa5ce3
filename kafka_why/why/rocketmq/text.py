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
    DuplicatePeriod,
    Report,
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
# RocketMQ never sends a notification for these kinds. Each has the text that says so, or None if nobody would
# expect one. For other kinds the group's configuration decides.
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
    duplicates = [
        f"{_connections_text(period.client_id, period.places)} since {clock.time(period.from_ms)} {zone}"
        for period in _current_duplicates(report)
    ]
    if duplicates:
        return f"Group {report.group_id} of RocketMQ has a DUPLICATE CLIENT ID: {'; '.join(duplicates)}"
    # EXPIRED is an event of the past, not a present fault.
    present = [str(symptom.kind) for symptom in report.symptoms if symptom.kind is not SymptomKind.EXPIRED]
    if faults := list(dict.fromkeys(present)):
        return f"Group {report.group_id} of RocketMQ has {', '.join(faults)}"
    since = f"since {clock.time(report.consumers_since_ms)} {zone}"
    clients = len({consumer.client_id for consumer in report.consumers})
    least = "" if report.complete else "at least "  # connections may be missing in the history
    if not clients and report.complete:
        return f"Group {report.group_id} of RocketMQ has no consumers {since}"
    return f"Group {report.group_id} of RocketMQ has {least}{count(clients, 'client')} {since}"


def _summary(report: Report, clock: Clock) -> Lines:
    if _current_duplicates(report):
        yield "To do", TO_DO_DUPLICATE
    for symptom in report.symptoms:
        if symptom.kind is not SymptomKind.DUPLICATE:
            since = "" if symptom.since_ms is None else f", since {clock.time(symptom.since_ms)}"
            yield "Fault", f"{symptom.kind}{since}: {symptom.reason}"
            yield "To do", symptom.to_do
    if report.consumers:
        yield "Clients", _client_ids_text(report.consumers)
    if report.topics:
        yield "Topics", shortened(report.topics)
    yield "Queues", _QUEUES if report.polled is None else _POLLED_QUEUES
    for topic, mode in report.request_modes.items():
        yield "", f"but the coordinator assigns the queues of {topic} to clients that query it: {mode}"
    since_ms = report.from_ms if report.since_ms is None else max(report.since_ms, report.from_ms)
    notified = f"all connections were notified {count(report.notifications, 'time')}"
    yield "Changes", f"{len(report.changes)} since {clock.time(since_ms)}; {notified}"
    yield from tally("Causes", [(c.changes, c.kind, c.by_client) for c in report.counts])
    # Past and harmless ones, too, unlike `_current_duplicates`.
    duplicates = [
        f"{_connections_text(d.client_id, d.places)}, {_lasted_text(d, report.now_ms)}" for d in report.traps
    ]
    yield from listing("Duplicates", duplicates)
    differences = [f"{_lasted_text(d, report.now_ms)}: {d.reason}" for d in report.differences]
    yield from listing("Differences", differences)
    for note in report.notes:
        yield "Note", note


def _current_duplicates(report: Report) -> list[DuplicatePeriod]:
    """Return the current duplicate client ids that do harm."""
    return [period for period in report.traps if period.to_ms is None and not period.harmless]


def _connections_text(client_id: str, connections: Sequence[str]) -> str:
    """Return a text such as `worker-1 on c1 and c4`. `connections` may have clients' addresses."""
    # They are empty if the history entry was too large to list them.
    return f"{client_id} on {' and '.join(connections) or 'several connections'}"


def _lasted_text(period: DuplicatePeriod | Difference, now_ms: int) -> str:
    """Return how long a period lasted, and its first and last change."""
    if period.to_ms is None:
        return f"for {duration_text(max(now_ms - period.from_ms, 0))} now, since #{period.began}"
    return f"for {duration_text(period.to_ms - period.from_ms)}, from #{period.began} to #{period.ended}"


def _change_text(change: Change, report: Report, clock: Clock) -> VisibleText:
    head = f"#{change.number}  {clock.time(change.at_ms)}  {_title(change)}"
    return visible_text([head, *(INDENT + line for line in columns(_details(change, report)))])


def _title(change: Change) -> str:
    """Return a text such as `client left: worker-2`. A duplicate client id has its connections."""
    if change.traps:
        duplicates = "; ".join(
            _connections_text(duplicate.client_id, places_of(change, duplicate)) for duplicate in change.traps
        )
        return (
            f"{change.kind}, harmless: {duplicates}"
            if change.harmless
            else f"DUPLICATE CLIENT ID: {duplicates}"
        )
    names = list(dict.fromkeys(c.client_id for c in change.concerned if c.client_id is not None))
    return f"{change.kind}: {shortened(names)}" if names else str(change.kind)


def _details(change: Change, report: Report) -> Lines:
    yield from _causes(change)
    for period in report.traps:
        if period.began == change.number:
            yield "lasted", _lasted_text(period, report.now_ms)
            if not period.harmless:
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
        yield "clients", _client_ids_text(change.consumers) if change.consumers else "none"


def _difference_lines(change: Change, report: Report) -> Lines:
    for difference in report.differences:
        if difference.began == change.number:
            yield "differ", f"{_lasted_text(difference, report.now_ms)}: {difference.reason}"
            yield "to do", TO_DO_SUBSCRIPTIONS
        if difference.ended == change.number:
            yield "over", "all clients have the same subscriptions again"


def _causes(change: Change) -> Lines:
    """Yield the reason, the request or scan, and the connections."""
    has_several_clients = len({concerned.client_id for concerned in change.concerned}) > 1
    if change.kind not in _EXPLAINED_BY_KIND:
        for concerned in change.concerned:
            prefix = f"{concerned.client_id}: " if has_several_clients and concerned.client_id else ""
            yield "why", f"{prefix}{concerned.reason}"
    yield "trigger", trigger_text(change.trigger)
    consumers = {consumer.connection: consumer for consumer in change.consumers}
    if not change.traps:  # the title has the connections of a duplicate client id
        for concerned in change.concerned:
            if concerned.connection is not None:
                client = consumers.get(concerned.connection)
                of_client = f" of {client.address} at {client.broker}" if client and client.address else ""
                yield "on", f"connection {concerned.connection}{of_client}"


def _notification(change: Change) -> str | None:
    """Return the notification that the coordinator sent, or why it sent none.

    Return None if the kind of the change has nothing to do with notifications.
    """
    if change.notification is not None:
        return change.notification
    if not change.consumers and change.complete:
        return "none: the group has no connections left"
    by_configuration = "none: the group broadcasts, or its notifications are switched off"
    kinds = (change.kind, *change.also)
    return next((_NEVER_NOTIFIED[kind] for kind in kinds if kind in _NEVER_NOTIFIED), by_configuration)


def _client_ids_text(consumers: Sequence[Consumer]) -> str:
    """Return the client ids with their numbers of connections, such as `worker-1 twice, worker-2`."""
    times = connections_by_client(consumers)
    return shortened([_id_with_count(client_id, number) for client_id, number in times.items()])


def _id_with_count(client_id: str, number: int) -> str:
    return client_id if number == 1 else f"{client_id} {'twice' if number == 2 else f'{number} times'}"
