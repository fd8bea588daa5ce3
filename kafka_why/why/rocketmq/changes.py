"""Derives a RocketMQ group's changes from its history: effects of requests and scans, and notifications."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from msgspec.structs import replace

from kafka_why.contract.rocketmq.history import EntryType, HistoryEntry
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.why.rocketmq.model import (
    Change,
    ChangeCount,
    ChangeKind,
    Concerned,
    Consumer,
    Difference,
    DuplicateId,
    Report,
    Trap,
    symptoms,
)
from kafka_why.why.segments import IncarnationHistory, by_incarnation, history_notes

_KINDS = {
    EntryType.DUPLICATE_CLIENT_ID: ChangeKind.DUPLICATE,
    EntryType.SUBSCRIPTIONS_DIFFER: ChangeKind.DIFFER,
    EntryType.CONSUMER_CONNECTED: ChangeKind.CONNECTED,
    EntryType.CLIENT_ID_REPLACED: ChangeKind.REPLACED,
    EntryType.CONSUMER_REMOVED: ChangeKind.LEFT,
    EntryType.SUBSCRIPTION_CHANGED: ChangeKind.TOPICS,
    EntryType.SUBSCRIPTIONS_DIFFER_OVER: ChangeKind.TOPICS,
    EntryType.QUEUE_LOCKS_TAKEN_OVER: ChangeKind.LOCKS,
    EntryType.MESSAGE_REQUEST_MODE_SET: ChangeKind.MODE,
    EntryType.CONSUMERS_NOTIFIED: ChangeKind.NOTIFIED,
}


SAME_CHANGE_MS = 3_000
"""Connections of one client to several brokers count as one change if they begin or end within this time."""


def changes_of(group_lives: Iterable[IncarnationHistory[HistoryEntry]]) -> list[Change]:
    """Return all changes in order."""
    found: list[Change] = []
    for life in group_lives:
        # Incomplete if the beginning of the incarnation is missing.
        clients: dict[str, Consumer] = {}  # by connection
        gaps = {after.seq for before, after in pairwise(life.entries) if after.seq > before.seq + 1}
        complete = life.first_seq == 1
        for _, entries in groupby(life.entries, key=lambda event: event.cause):
            step = list(entries)
            complete = complete and not any(event.seq in gaps for event in step)
            _apply_to_connections(clients, step)
            kinds = _kinds(step)
            if kinds:
                change = _change(len(found) + 1, kinds, step, list(clients.values()), complete=complete)
                if found and _is_same_change(found[-1], change):
                    change = _merged(found.pop(), change)
                found.append(change)
    return found


def _apply_to_connections(clients: dict[str, Consumer], step: Iterable[HistoryEntry]) -> None:
    for event in step:
        connection, client_id = event.connection, event.client_id
        if connection is not None and client_id is not None:
            if event.type in (EntryType.CONSUMER_CONNECTED, EntryType.CLIENT_ID_REPLACED):
                place = (event.broker or "", event.client_address or "")
                clients[connection] = Consumer(client_id, connection, *place)
            elif event.type is EntryType.CONSUMER_REMOVED:
                clients.pop(connection, None)
        for subscriber, subscriptions in (event.subscriptions or {}).items():
            if subscriber in clients:
                clients[subscriber] = replace(clients[subscriber], subscriptions=subscriptions)


def _is_same_change(change: Change, following: Change) -> bool:
    """Return True if `following` is the same change of the same client, at another broker."""
    clients = {concerned.client_id for concerned in (*change.concerned, *following.concerned)}
    brokers = {consumer.broker for consumer in (*change.consumers, *following.consumers)}
    return (
        change.kind is following.kind
        and change.kind in (ChangeKind.CONNECTED, ChangeKind.LEFT, ChangeKind.DIFFER)
        and change.incarnation == following.incarnation
        and following.at_ms - change.at_ms <= SAME_CHANGE_MS
        and len(clients) == 1
        and len(brokers) > 1
    )


def _merged(change: Change, following: Change) -> Change:
    return replace(
        following,
        number=change.number,
        at_ms=change.at_ms,
        trigger=change.trigger,
        also=[kind for kind in ChangeKind if kind in (*change.also, *following.also)],
        concerned=[*change.concerned, *following.concerned],
        topics=following.topics or change.topics,
        topics_reason=following.topics_reason or change.topics_reason,
        notification=following.notification or change.notification,
        released=[*change.released, *following.released],
        differ=change.differ | following.differ,
    )


def _kinds(step: Sequence[HistoryEntry]) -> list[ChangeKind]:
    """Return the kinds of a step, the main kind first. A step that is not about consumers has none."""
    found = {ChangeKind.EXPIRED if event.is_expiry else _KINDS.get(event.type) for event in step}
    return [kind for kind in ChangeKind if kind in found]


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

    entry_kind = ChangeKind.LEFT if kinds[0] is ChangeKind.EXPIRED else kinds[0]
    events = [event for event in step if _KINDS.get(event.type) is entry_kind]
    if kinds[0] is ChangeKind.DIFFER:  # the client that caused the difference
        events = [event for event in step if event.client_id is not None][:1]
    topics, notified = of(EntryType.SUBSCRIPTION_CHANGED), of(EntryType.CONSUMERS_NOTIFIED)
    duplicates = of(EntryType.DUPLICATE_CLIENT_ID)
    return Change(
        number=number,
        incarnation=step[0].incarnation,
        at_ms=step[0].at_ms,
        kind=kinds[0],
        also=list(kinds[1:]),
        trigger=step[0].cause,
        concerned=[Concerned(event.reason, event.client_id, event.connection) for event in events],
        topics=topics[-1].topics if topics else None,
        topics_reason=topics[-1].reason if topics else None,
        notification=notified[-1].reason if notified else None,
        consumers=consumers,
        complete=complete,
        traps=[
            DuplicateId(e.client_id, e.broker or "", e.connections or []) for e in duplicates if e.client_id
        ],
        harmless=any(e.message_model is MessageModel.BROADCASTING for e in duplicates),
        released=[
            DuplicateId(e.client_id, e.broker or "", [])
            for e in of(EntryType.DUPLICATE_CLIENT_ID_OVER)
            if e.client_id
        ],
        differ={
            event.broker or "": event.reason if event.type is EntryType.SUBSCRIPTIONS_DIFFER else ""
            for event in step
            if event.type in (EntryType.SUBSCRIPTIONS_DIFFER, EntryType.SUBSCRIPTIONS_DIFFER_OVER)
        },
    )


def traps_of(changes: Sequence[Change]) -> list[Trap]:
    """Return the traps in the order of their beginnings."""
    found: list[Trap] = []
    open_traps: dict[str, int] = {}  # by client id, the index in `found` of its current trap
    brokers: dict[str, dict[str, None]] = {}  # by client id, the brokers that have its current trap
    incarnation = ""
    for change in changes:
        for duplicate in change.released:
            brokers.get(duplicate.client_id, {}).pop(duplicate.broker, None)
        ended = [client_id for client_id in open_traps if not brokers[client_id]]
        if change.incarnation != incarnation:
            # No connection outlives the group, so the entries about the ends of the traps are missing.
            ended, incarnation = list(open_traps), change.incarnation
        for client_id in ended:
            place = open_traps.pop(client_id)
            found[place] = replace(found[place], ended=change.number, to_ms=change.at_ms)
        for duplicate in change.traps:
            if duplicate.client_id not in open_traps:
                open_traps[duplicate.client_id], brokers[duplicate.client_id] = len(found), {}
                found.append(
                    Trap(duplicate.client_id, [], change.number, change.at_ms, None, None, change.harmless)
                )
            brokers[duplicate.client_id][duplicate.broker] = None
            trap = found[open_traps[duplicate.client_id]]
            if duplicate.broker == next(iter(brokers[duplicate.client_id])):
                every = list(dict.fromkeys([*trap.connections, *duplicate.connections]))
                at = list(dict.fromkeys([*trap.places, *places_of(change, duplicate)]))
                trap = replace(trap, connections=every, places=at)
            found[open_traps[duplicate.client_id]] = replace(trap, harmless=change.harmless)
    return found


def places_of(change: Change, duplicate: DuplicateId) -> list[str]:
    """Return the address of each client that shares the id, or its connection if the address is unknown."""
    known = {consumer.connection: consumer.place for consumer in change.consumers}
    return list(dict.fromkeys(known.get(connection, connection) for connection in duplicate.connections))


def differences_of(changes: Sequence[Change]) -> list[Difference]:
    """Return the periods in which clients subscribed to different topics or filters, in order."""
    found: list[Difference] = []
    differing: set[str] = set()  # the brokers that still have the last difference
    incarnation = ""
    for change in changes:
        was_different = bool(differing)
        differing = differing if change.incarnation == incarnation else set()
        incarnation = change.incarnation
        for broker, reason in change.differ.items():
            if not reason:
                differing.discard(broker)
            elif differing:
                differing.add(broker)
                every = sorted({*found[-1].brokers, broker})
                found[-1] = replace(found[-1], reason=reason, brokers=every)
            else:
                differing, was_different = {broker}, False
                found.append(Difference(reason, [broker], change.number, change.at_ms))
        if was_different and not differing:
            found[-1] = replace(found[-1], ended=change.number, to_ms=change.at_ms)
    return found


_PRODUCERS = (EntryType.PRODUCER_CONNECTED, EntryType.PRODUCER_REMOVED)


def report(
    group_id: str, history: Iterable[HistoryEntry], now_ms: int, since_ms: int | None = None
) -> Report:
    """Return the report on a group. `history` has at least one entry. It may have duplicates and gaps.

    Changes before `since_ms` are omitted, and traps and differences that ended before it. Other changes keep
    their numbers.
    """
    group_lives = by_incarnation(history)
    assert group_lives, "a group without history has no report"
    changes = changes_of(group_lives)
    shown = [change for change in changes if since_ms is None or change.at_ms >= since_ms]
    now = [change for change in changes if change.incarnation == group_lives[-1].incarnation]
    traps, differences = traps_of(changes), differences_of(changes)
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
        traps=[t for t in traps if t.to_ms is None or since_ms is None or t.to_ms >= since_ms],
        differences=[d for d in differences if d.to_ms is None or since_ms is None or d.to_ms >= since_ms],
        symptoms=symptoms(now, traps, differences, now_ms),
        notes=[*history_notes(group_lives), *_producers(group_lives)],
        changes=shown,
    )


def counts(changes: Sequence[Change]) -> list[ChangeCount]:
    """Return the counts of changes by kind, the most frequent kind first."""
    clients: dict[ChangeKind, Counter[str]] = {}
    numbers = Counter(change.kind for change in changes)
    for change in changes:
        concerned = clients.setdefault(change.kind, Counter())
        concerned.update(c.client_id for c in change.concerned if c.client_id is not None)
    return [
        ChangeCount(kind, number, dict(clients[kind].most_common())) for kind, number in numbers.most_common()
    ]


def _consumers_since_ms(life: IncarnationHistory[HistoryEntry], changes: Sequence[Change]) -> int:
    for before, after in reversed(list(zip([None, *changes], changes, strict=False))):
        if before is None or before.consumers != after.consumers:
            return after.at_ms
    return life.entries[0].at_ms


def _topics(changes: Sequence[Change]) -> list[str] | None:
    """Return the topics of the group's consumers, or None if unknown."""
    if changes and changes[-1].complete and not changes[-1].consumers:
        return []
    return next((c.topics for c in reversed(changes) if c.topics_reason is not None), None)


def _request_modes(life: IncarnationHistory[HistoryEntry]) -> dict[str, str]:
    """Return the request mode of each topic whose queues the coordinator assigns."""
    entries = [e for e in life.entries if e.type is EntryType.MESSAGE_REQUEST_MODE_SET]
    return {topic: event.reason for event in entries for topic in event.topics or ()}


def _producers(group_lives: Sequence[IncarnationHistory[HistoryEntry]]) -> list[str]:
    number = sum(event.type in _PRODUCERS for life in group_lives for event in life.entries)
    note = f"producers connected or left {number} times; no client rebalances because of that"
    return [note] if number else []
