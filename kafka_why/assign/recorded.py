"""Builds the group for `assign` from a group's history, as of one rebalance."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka_why.assign.model import GroupSpec, InputError, Member
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.model import Rebalance
from kafka_why.why.moves import Holdings, KnownState, read_holdings
from kafka_why.why.segments import by_incarnation

_ENDS = (EntryType.STABLE, EntryType.EMPTY)


class Recorded(NamedTuple):
    """The members before and after a rebalance with the partitions that they held before it, and the members
    that left in it.
    """

    group: GroupSpec
    gone: list[MemberId]


def recorded_group(history: Iterable[HistoryEntry], rebalance: Rebalance) -> Recorded:
    """Return the group of a rebalance.

    A topic has as many partitions as the assignments before and after the rebalance name. Raises InputError
    if the rebalance made no assignment, or the history lacks the members' subscriptions or partitions.
    """
    if rebalance.has_epochs:
        raise InputError(
            "the history of a group of the consumer protocol does not have its members' subscriptions; "
            "`assign --from-group` asks the coordinator for it"
        )
    life = next((life for life in by_incarnation(history) if life.incarnation == rebalance.incarnation), None)
    entries: Sequence[HistoryEntry] = [] if life is None else life.entries
    generation = rebalance.generation_to
    forming = _first(entries, EntryType.COMPLETING_REBALANCE, generation)
    stable = _first(entries, EntryType.STABLE, generation)
    if forming is None or stable is None or not forming.members:
        raise InputError("the history has no generation with an assignment for this rebalance")
    if forming.topics is None and forming.subscriptions is None:
        raise InputError("the history does not have the members' subscriptions")
    before = _held_before(entries, forming)
    after = read_holdings(stable.assignments or {})
    if before is None or after is None:
        raise InputError("the history does not have the partitions that the members held")
    topics = _topics(before, after)
    subscriptions = {member_id: _wanted(forming, member_id, topics) for member_id in forming.members}
    gone = [member_id for member_id, held in before.items() if held and member_id not in subscriptions]
    for member_id in gone:
        subscriptions[member_id] = tuple(dict.fromkeys(topic for topic, _ in sorted(before[member_id])))
    members = {member_id: Member(wanted) for member_id, wanted in subscriptions.items() if wanted}
    held = {member_id: partitions for member_id, partitions in before.items() if partitions}
    return Recorded(GroupSpec(topics, members, held or None), gone)


def _first(entries: Iterable[HistoryEntry], kind: EntryType, generation: int | None) -> HistoryEntry | None:
    return next((e for e in entries if e.type is kind and e.generation == generation), None)


def _held_before(entries: Sequence[HistoryEntry], forming: HistoryEntry) -> Holdings | None:
    """Return the partitions that members held before, by the members' ids in the new generation."""
    earlier = [entry for entry in entries if entry.seq < forming.seq]
    ended = next((place for place in reversed(range(len(earlier))) if earlier[place].type in _ENDS), None)
    if ended is None:
        return {} if earlier and earlier[0].seq == 1 else None
    known = KnownState()
    known.follow_static_members(earlier[:ended])
    end = earlier[ended]
    known.set_holdings({} if end.type is EntryType.EMPTY else read_holdings(end.assignments or {}))
    known.follow_static_members(earlier[ended:])
    return known.holdings


def _topics(*holdings: Holdings) -> dict[str, int]:
    counts: dict[str, int] = {}
    for held in holdings:
        for partitions in held.values():
            for topic, number in partitions:
                counts[topic] = max(counts.get(topic, 0), number + 1)
    return dict(sorted(counts.items()))


def _wanted(forming: HistoryEntry, member_id: MemberId, topics: Mapping[str, int]) -> tuple[str, ...]:
    wanted = (forming.subscriptions or {}).get(member_id, forming.topics or [])
    return tuple(topic for topic in wanted if topic in topics)
