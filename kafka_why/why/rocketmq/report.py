"""A report on a RocketMQ group: its clients, its faults, and the changes."""

from collections import Counter
from collections.abc import Iterable, Sequence

from kafka_why.contract.rocketmq.history import EntryType, HistoryEntry
from kafka_why.why.incarnations import IncarnationHistory, by_incarnation
from kafka_why.why.notes import notes
from kafka_why.why.rocketmq.changes import changes_of, traps_of
from kafka_why.why.rocketmq.model import Change, ChangeCount, ChangeKind, Report

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
