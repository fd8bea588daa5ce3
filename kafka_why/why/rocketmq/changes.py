"""A RocketMQ group's history as a list of changes: the effect of each request or scan, and notifications."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from msgspec.structs import replace

from kafka_why.contract.rocketmq.history import EntryType, HistoryEntry
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.why.rocketmq.model import Change, ChangeCount, ChangeKind, Concerned, Consumer, Report, Trap
from kafka_why.why.segments import IncarnationHistory, by_incarnation, notes

_KINDS = {
    EntryType.DUPLICATE_CLIENT_ID: ChangeKind.DUPLICATE,
    EntryType.CONSUMER_CONNECTED: ChangeKind.CONNECTED,
    EntryType.CLIENT_ID_REPLACED: ChangeKind.REPLACED,
    EntryType.CONSUMER_REMOVED: ChangeKind.LEFT,
    EntryType.SUBSCRIPTION_CHANGED: ChangeKind.TOPICS,
    EntryType.QUEUE_LOCKS_TAKEN_OVER: ChangeKind.LOCKS,
    EntryType.MESSAGE_REQUEST_MODE_SET: ChangeKind.MODE,
    EntryType.CONSUMERS_NOTIFIED: ChangeKind.NOTIFIED,
}


def changes_of(group_lives: Iterable[IncarnationHistory[HistoryEntry]]) -> list[Change]:
    """Return all changes in order. A life without its beginning starts with no known clients."""
    found: list[Change] = []
    for life in group_lives:
        clients: dict[str, str] = {}  # by connection
        gaps = {after.seq for before, after in pairwise(life.entries) if after.seq > before.seq + 1}
        complete = life.first_seq == 1
        for _, entries in groupby(life.entries, key=lambda event: event.cause):
            step = list(entries)
            complete = complete and not any(event.seq in gaps for event in step)
            _follow(clients, step)
            consumers = [Consumer(client_id, connection) for connection, client_id in clients.items()]
            kinds = _kinds(step)
            if kinds:
                found.append(_change(len(found) + 1, kinds, step, consumers, complete=complete))
    return found


def _follow(clients: dict[str, str], step: Iterable[HistoryEntry]) -> None:
    """Update the table of connections with the entries."""
    for event in step:
        if event.connection is None or event.client_id is None:
            continue
        if event.type in (EntryType.CONSUMER_CONNECTED, EntryType.CLIENT_ID_REPLACED):
            clients[event.connection] = event.client_id
        elif event.type is EntryType.CONSUMER_REMOVED:
            clients.pop(event.connection, None)


def _kinds(step: Sequence[HistoryEntry]) -> list[ChangeKind]:
    """Return the kinds of a step, the main kind first; empty if the step does not concern consumers."""
    there = {ChangeKind.EXPIRED if event.is_expiry else _KINDS.get(event.type) for event in step}
    return [kind for kind in ChangeKind if kind in there]


def _change(
    number: int,
    kinds: Sequence[ChangeKind],
    step: Sequence[HistoryEntry],
    consumers: list[Consumer],
    *,
    complete: bool,
) -> Change:
    def of(event_type: EntryType) -> list[HistoryEntry]:
        return [event for event in step if event.type is event_type]

    naming = ChangeKind.LEFT if kinds[0] is ChangeKind.EXPIRED else kinds[0]
    about = [event for event in step if _KINDS.get(event.type) is naming]
    topics, notified = of(EntryType.SUBSCRIPTION_CHANGED), of(EntryType.CONSUMERS_NOTIFIED)
    duplicates = of(EntryType.DUPLICATE_CLIENT_ID)
    return Change(
        number=number,
        incarnation=step[0].incarnation,
        at_ms=step[0].at_ms,
        kind=kinds[0],
        also=list(kinds[1:]),
        trigger=step[0].cause,
        concerned=[Concerned(event.reason, event.client_id, event.connection) for event in about],
        topics=topics[-1].topics if topics else None,
        topics_reason=topics[-1].reason if topics else None,
        notification=notified[-1].reason if notified else None,
        consumers=consumers,
        complete=complete,
        traps={e.client_id: e.connections or [] for e in duplicates if e.client_id},
        harmless=any(e.message_model is MessageModel.BROADCASTING for e in duplicates),
        released=[e.client_id for e in of(EntryType.DUPLICATE_CLIENT_ID_OVER) if e.client_id],
    )


def traps_of(changes: Sequence[Change]) -> list[Trap]:
    """Return the client ids that were on several connections at once, in the order of their beginnings."""
    found: list[Trap] = []
    on: dict[str, int] = {}  # by client id, the index in `found` of its trap while it lasts
    incarnation = ""
    for change in changes:
        if change.incarnation != incarnation:
            # The entries that ended them are missing: no connection outlives the group.
            _end(found, on, list(on), change)
            incarnation = change.incarnation
        for client_id, connections in change.traps.items():
            if client_id not in on:
                on[client_id] = len(found)
                found.append(Trap(client_id, [], change.number, change.at_ms, None, None, change.harmless))
            trap = found[on[client_id]]
            every = list(dict.fromkeys([*trap.connections, *connections]))
            found[on[client_id]] = replace(trap, connections=every, harmless=change.harmless)
        _end(found, on, change.released, change)
    return found


def _end(found: list[Trap], on: dict[str, int], client_ids: Iterable[str], change: Change) -> None:
    for client_id in client_ids:
        if client_id in on:
            place = on.pop(client_id)
            found[place] = replace(found[place], ended=change.number, to_ms=change.at_ms)


_PRODUCERS = (EntryType.PRODUCER_CONNECTED, EntryType.PRODUCER_REMOVED)


def report(
    group_id: str, history: Iterable[HistoryEntry], now_ms: int, since_ms: int | None = None
) -> Report:
    """Return the report on a group. `history` has at least one entry; it may have duplicates and gaps.

    `since_ms` omits earlier changes, and the traps that ended before it; the numbers stay.
    """
    group_lives = by_incarnation(history)
    assert group_lives, "a group without history has no report"
    every = changes_of(group_lives)
    shown = [change for change in every if since_ms is None or change.at_ms >= since_ms]
    now = [change for change in every if change.incarnation == group_lives[-1].incarnation]
    return Report(
        group_id=group_id,
        now_ms=now_ms,
        since_ms=since_ms,
        from_ms=group_lives[0].entries[0].at_ms,
        consumers=now[-1].consumers if now else [],
        complete=now[-1].complete if now else group_lives[-1].first_seq == 1,
        consumers_since_ms=_consumers_since_ms(group_lives[-1], now),
        topics=_topics(now),
        request_modes=_request_modes(group_lives[-1]),
        counts=counts(shown),
        notifications=sum(change.notification is not None for change in shown),
        traps=[t for t in traps_of(every) if t.to_ms is None or since_ms is None or t.to_ms >= since_ms],
        notes=[*notes(group_lives), *_producers(group_lives)],
        changes=shown,
    )


def counts(changes: Sequence[Change]) -> list[ChangeCount]:
    """Return the counts of changes by kind, the most frequent first."""
    clients: dict[ChangeKind, Counter[str]] = {}
    numbers = Counter(change.kind for change in changes)
    for change in changes:
        concerned = clients.setdefault(change.kind, Counter())
        concerned.update(c.client_id for c in change.concerned if c.client_id is not None)
    return [
        ChangeCount(kind, number, dict(clients[kind].most_common())) for kind, number in numbers.most_common()
    ]


def _consumers_since_ms(life: IncarnationHistory[HistoryEntry], changes: Sequence[Change]) -> int:
    """Return when the set of connections last changed."""
    for before, after in reversed(list(zip([None, *changes], changes, strict=False))):
        if before is None or before.consumers != after.consumers:
            return after.at_ms
    return life.entries[0].at_ms


def _topics(changes: Sequence[Change]) -> list[str] | None:
    """Return the topics of the group's consumers; a group without consumers has none."""
    if changes and changes[-1].complete and not changes[-1].consumers:
        return []
    return next((c.topics for c in reversed(changes) if c.topics_reason is not None), None)


def _request_modes(life: IncarnationHistory[HistoryEntry]) -> dict[str, str]:
    """Return how the coordinator assigns which topics, in the words of the last entry for each topic."""
    entries = [e for e in life.entries if e.type is EntryType.MESSAGE_REQUEST_MODE_SET]
    return {topic: event.reason for event in entries for topic in event.topics or ()}


def _producers(group_lives: Sequence[IncarnationHistory[HistoryEntry]]) -> list[str]:
    number = sum(event.type in _PRODUCERS for life in group_lives for event in life.entries)
    note = f"producers connected or left {number} times; no client rebalances because of that"
    return [note] if number else []
