"""Derives a RocketMQ group's changes from its history: effects of requests and scans, and notifications.

A step is the entries of one request or scan. Most steps become one change.
"""

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
    DuplicatePeriod,
    Report,
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
    """Return the changes of all lives in order, numbered from 1."""
    changes: list[Change] = []
    for life in group_lives:
        consumers: dict[str, Consumer] = {}  # by connection
        # Seqs of the entries before which one is missing.
        after_gaps = {after.seq for before, after in pairwise(life.entries) if after.seq > before.seq + 1}
        is_complete = life.first_seq == 1  # no consumer is missing in `consumers`
        for _, entries in groupby(life.entries, key=lambda event: event.cause):
            step = list(entries)
            is_complete = is_complete and not any(event.seq in after_gaps for event in step)
            _update_consumers(consumers, step)
            kinds = _kinds(step)
            if kinds:
                change = _build_change(
                    len(changes) + 1, kinds, step, list(consumers.values()), complete=is_complete
                )
                if changes and _is_same_change(changes[-1], change):
                    change = _merge(changes.pop(), change)
                changes.append(change)
    return changes


def _update_consumers(consumers: dict[str, Consumer], step: Iterable[HistoryEntry]) -> None:
    """Update `consumers`, by connection, with the entries of a step."""
    for event in step:
        connection, client_id = event.connection, event.client_id
        if connection is not None and client_id is not None:
            if event.type in (EntryType.CONSUMER_CONNECTED, EntryType.CLIENT_ID_REPLACED):
                consumers[connection] = Consumer(
                    client_id, connection, event.broker or "", event.client_address or ""
                )
            elif event.type is EntryType.CONSUMER_REMOVED:
                consumers.pop(connection, None)
        for subscriber_connection, subscriptions in (event.subscriptions or {}).items():
            if subscriber_connection in consumers:
                consumers[subscriber_connection] = replace(
                    consumers[subscriber_connection], subscriptions=subscriptions
                )


def _is_same_change(change: Change, following: Change) -> bool:
    """Return True if `following` is a change of the same kind by the same client, seen at another broker."""
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


def _merge(change: Change, following: Change) -> Change:
    """Return one change with the consumers after `following`, and the number and time of `change`."""
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
    kinds = {ChangeKind.EXPIRED if event.is_expiry else _KINDS.get(event.type) for event in step}
    return [kind for kind in ChangeKind if kind in kinds]


def _build_change(
    number: int,
    kinds: Sequence[ChangeKind],
    step: Sequence[HistoryEntry],
    consumers: list[Consumer],
    *,
    complete: bool,
) -> Change:
    """Build the change of a step. `kinds` are the step's, and `consumers` the connections after it."""

    def entries_of(event_type: EntryType) -> list[HistoryEntry]:
        return [event for event in step if event.type is event_type]

    # The entries about the main kind. `_KINDS` has no EXPIRED, because expiries are CONSUMER_REMOVED entries.
    entry_kind = ChangeKind.LEFT if kinds[0] is ChangeKind.EXPIRED else kinds[0]
    events = [event for event in step if _KINDS.get(event.type) is entry_kind]
    if kinds[0] is ChangeKind.DIFFER:
        # The first entry about a client names the client that caused the difference.
        events = [event for event in step if event.client_id is not None][:1]
    topics, notified = entries_of(EntryType.SUBSCRIPTION_CHANGED), entries_of(EntryType.CONSUMERS_NOTIFIED)
    duplicates = entries_of(EntryType.DUPLICATE_CLIENT_ID)
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
            for e in entries_of(EntryType.DUPLICATE_CLIENT_ID_OVER)
            if e.client_id
        ],
        differ={
            event.broker or "": event.reason if event.type is EntryType.SUBSCRIPTIONS_DIFFER else ""
            for event in step
            if event.type in (EntryType.SUBSCRIPTIONS_DIFFER, EntryType.SUBSCRIPTIONS_DIFFER_OVER)
        },
    )


def duplicate_periods(changes: Sequence[Change]) -> list[DuplicatePeriod]:
    """Return the periods in which client ids were duplicate, in order."""
    periods: list[DuplicatePeriod] = []
    current: dict[str, int] = {}  # by client id, the index in `periods` of its current period
    brokers: dict[str, dict[str, None]] = {}  # by client id, the brokers where it is duplicate
    incarnation = ""
    for change in changes:
        for duplicate in change.released:
            brokers.get(duplicate.client_id, {}).pop(duplicate.broker, None)
        ended = [client_id for client_id in current if not brokers[client_id]]
        if change.incarnation != incarnation:
            # No connection outlives the group, so the entries about the ends of these periods are missing.
            ended, incarnation = list(current), change.incarnation
        for client_id in ended:
            index = current.pop(client_id)
            periods[index] = replace(periods[index], ended=change.number, to_ms=change.at_ms)
        for duplicate in change.traps:
            if duplicate.client_id not in current:
                current[duplicate.client_id], brokers[duplicate.client_id] = len(periods), {}
                periods.append(
                    DuplicatePeriod(
                        client_id=duplicate.client_id,
                        connections=[],
                        began=change.number,
                        from_ms=change.at_ms,
                        ended=None,
                        to_ms=None,
                        harmless=change.harmless,
                    )
                )
            brokers[duplicate.client_id][duplicate.broker] = None
            period = periods[current[duplicate.client_id]]
            # `connections` and `places` are those at the broker where the period began.
            if duplicate.broker == next(iter(brokers[duplicate.client_id])):
                connections = list(dict.fromkeys([*period.connections, *duplicate.connections]))
                places = list(dict.fromkeys([*period.places, *places_of(change, duplicate)]))
                period = replace(period, connections=connections, places=places)
            periods[current[duplicate.client_id]] = replace(period, harmless=change.harmless)
    return periods


def places_of(change: Change, duplicate: DuplicateId) -> list[str]:
    """Return the address of each client that shares the id, or its connection if the address is unknown."""
    place_by_connection = {consumer.connection: consumer.place for consumer in change.consumers}
    return list(
        dict.fromkeys(place_by_connection.get(connection, connection) for connection in duplicate.connections)
    )


def differences_of(changes: Sequence[Change]) -> list[Difference]:
    """Return the periods in which clients subscribed to different topics or filters, in order."""
    differences: list[Difference] = []
    differing: set[str] = set()  # the brokers that still have the last difference
    incarnation = ""
    for change in changes:
        was_different = bool(differing)
        differing = differing if change.incarnation == incarnation else set()
        incarnation = change.incarnation
        for broker, reason in change.differ.items():
            if not reason:  # the difference is over at this broker
                differing.discard(broker)
            elif differing:
                differing.add(broker)
                brokers = sorted({*differences[-1].brokers, broker})
                differences[-1] = replace(differences[-1], reason=reason, brokers=brokers)
            else:
                differing, was_different = {broker}, False
                differences.append(Difference(reason, [broker], change.number, change.at_ms))
        if was_different and not differing:
            differences[-1] = replace(differences[-1], ended=change.number, to_ms=change.at_ms)
    return differences


_PRODUCERS = (EntryType.PRODUCER_CONNECTED, EntryType.PRODUCER_REMOVED)


def report(
    group_id: str, history: Iterable[HistoryEntry], now_ms: int, since_ms: int | None = None
) -> Report:
    """Return the report on a group. `history` has at least one entry. It may have duplicates and gaps.

    Changes before `since_ms` are omitted, and duplicate ids and differences that ended before it. The other
    changes keep their numbers.
    """
    group_lives = by_incarnation(history)
    assert group_lives, "a group without history has no report"
    changes = changes_of(group_lives)
    shown = [change for change in changes if since_ms is None or change.at_ms >= since_ms]
    last_life = group_lives[-1]
    latest = [change for change in changes if change.incarnation == last_life.incarnation]
    duplicates, differences = duplicate_periods(changes), differences_of(changes)
    return Report(
        group_id=group_id,
        now_ms=now_ms,
        since_ms=since_ms,
        from_ms=group_lives[0].entries[0].at_ms,
        consumers=latest[-1].consumers if latest else [],
        complete=latest[-1].complete if latest else last_life.first_seq == 1,
        consumers_since_ms=_consumers_since_ms(last_life, latest),
        topics=_topics(latest),
        request_modes=_request_modes(last_life),
        counts=counts(shown),
        notifications=sum(change.notification is not None for change in shown),
        traps=[d for d in duplicates if d.to_ms is None or since_ms is None or d.to_ms >= since_ms],
        differences=[d for d in differences if d.to_ms is None or since_ms is None or d.to_ms >= since_ms],
        symptoms=symptoms(latest, duplicates, differences, now_ms),
        notes=[*history_notes(group_lives), *_producer_notes(group_lives)],
        changes=shown,
    )


def counts(changes: Sequence[Change]) -> list[ChangeCount]:
    """Return the counts of changes by kind, the most frequent kind first."""
    by_client: dict[ChangeKind, Counter[str]] = {}
    numbers = Counter(change.kind for change in changes)
    for change in changes:
        client_counts = by_client.setdefault(change.kind, Counter())
        client_counts.update(c.client_id for c in change.concerned if c.client_id is not None)
    return [
        ChangeCount(kind, number, dict(by_client[kind].most_common()))
        for kind, number in numbers.most_common()
    ]


def _consumers_since_ms(life: IncarnationHistory[HistoryEntry], changes: Sequence[Change]) -> int:
    """Return when the connections of the group's consumers last changed. `changes` are those of `life`."""
    # Each change with the one before it, the last first.
    for before, after in reversed(list(zip([None, *changes], changes, strict=False))):
        if before is None or before.consumers != after.consumers:
            return after.at_ms
    return life.entries[0].at_ms


def _topics(changes: Sequence[Change]) -> list[str] | None:
    """Return the topics of the group's consumers, or None if unknown. `changes` are those of one life."""
    if changes and changes[-1].complete and not changes[-1].consumers:
        return []
    return next((c.topics for c in reversed(changes) if c.topics_reason is not None), None)


def _request_modes(life: IncarnationHistory[HistoryEntry]) -> dict[str, str]:
    """Return a description of the request mode of each topic whose queues the coordinator assigns.

    The reason of the entry that set the mode is its description.
    """
    entries = [e for e in life.entries if e.type is EntryType.MESSAGE_REQUEST_MODE_SET]
    return {topic: event.reason for event in entries for topic in event.topics or ()}


def _producer_notes(group_lives: Sequence[IncarnationHistory[HistoryEntry]]) -> list[str]:
    """Return a note on changes of the group's producers, if there are any."""
    number = sum(event.type in _PRODUCERS for life in group_lives for event in life.entries)
    note = f"producers connected or left {number} times; no client rebalances because of that"
    return [note] if number else []
