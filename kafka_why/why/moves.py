"""Finds the partitions that a rebalance moved, and how many of the moves were needless.

A partition is *moved* if it is assigned after the rebalance and its last owner is not its current owner. Its
last owner is the member that held it before the rebalance. If no member held it because the previous
rebalance revoked it (a cooperative assignor hands a partition over in two rebalances), its last owner is the
member that held it before the previous rebalance.

Some moves are necessary. Partitions whose last owner has left must move, and so must as many others as an
even split needs. In an even split the members' counts differ by at most one. Stayers are the members that are
in the group before and after the rebalance. For an even split of P partitions among n members, stayers have
to give up at least this number of partitions:

sum of a(m) - sum of min(a(m), q) - min(r, number of m with a(m) > q)     with q, r = divmod(P, n)

Here a(m) is how many of the P partitions the stayer m owned last. Each stayer may keep q partitions, and r
stayers may keep one more. Moves from stayers beyond this minimum are *needless*: another assignment, at least
as even, would have avoided them. If members subscribe to different topics, there is no formula. The minimum
is then the number of partitions that `sticky` moves from the stayers, because `sticky` finds the minimum.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    ProtocolError,
    Subscription,
    TopicPartition,
    by_topic,
    decode_assignment,
    encode_sticky_user_data,
)
from kafka_why.sticky.assignor import StickyAssignor
from kafka_why.why.model import Idle, MemberMoves, Moves

Partitions: TypeAlias = frozenset[TopicPartition]
Holdings: TypeAlias = Mapping[MemberId, Partitions]
Numbers: TypeAlias = Mapping[MemberId, int]


def read_holdings(assignments: Mapping[MemberId, bytes]) -> Holdings | None:
    """Return an assignment, or None if it is not one of Kafka's consumer."""
    try:
        return {member_id: _decoded(data) for member_id, data in assignments.items()}
    except ProtocolError:
        return None


def _decoded(data: bytes) -> Partitions:
    return frozenset(decode_assignment(data).partitions if data else ())


class AssignmentDecoder:
    """A decoder of leaders' assignments, in the order of the history.

    A member's bytes that are also in the previous assignment are not decoded again. Only the partitions of
    the last assignment stay in memory, and the numbers of partitions of all.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, Partitions] = {}
        self._numbers: dict[tuple[str, int], Numbers | None] = {}

    def holdings(self, entry: HistoryEntry) -> Holdings | None:
        """Return the assignment in an entry, or None if it has none of Kafka's consumer."""
        if entry.assignments is None:
            return None
        try:
            found = self._read(entry.assignments)
        except ProtocolError:
            found = None
        numbers = None if found is None else {member_id: len(held) for member_id, held in found.items()}
        self._numbers[entry.incarnation, entry.seq] = numbers
        return found

    def numbers(self, entry: HistoryEntry) -> Numbers | None:
        """Return each member's number of partitions in an entry, or None if `holdings` returns None."""
        key = entry.incarnation, entry.seq
        if key not in self._numbers:
            self.holdings(entry)
        return self._numbers.get(key)

    def _read(self, assignments: Mapping[MemberId, bytes]) -> Holdings:
        before, self._last = self._last, {}
        found: dict[MemberId, Partitions] = {}
        for member_id, data in assignments.items():
            held = self._last.get(data)
            if held is None:
                held = before.get(data)
            if held is None:
                held = _decoded(data)
            self._last[data] = found[member_id] = held
        return found


Subscriptions: TypeAlias = Mapping[MemberId, Collection[str]]
_NOTHING: Final[Partitions] = frozenset()


def owners(holdings: Holdings) -> dict[TopicPartition, MemberId]:
    """Return each partition's owner."""
    found: dict[TopicPartition, MemberId] = {}
    for member_id, partitions in holdings.items():
        for partition in partitions:
            # A faulty leader may assign several owners.
            found.setdefault(partition, member_id)
    return found


def compare(
    before: Holdings,
    after: Holdings,
    released: Mapping[TopicPartition, MemberId] | None = None,
    subscriptions: Subscriptions | None = None,
) -> Moves:
    """Compare one assignment with the next.

    `released` maps partitions without an owner in `before` to their last owners. `subscriptions` has each
    member's topics, or is None if all members subscribe to the same topics.
    """
    changed = _changed(before, after)
    held = owners({member_id: before[member_id] for member_id in before if member_id in changed})
    now = owners({member_id: after[member_id] for member_id in after if member_id in changed})
    last = {**(released or {}), **held}
    kept = {member_id: len(partitions) for member_id, partitions in after.items() if member_id not in changed}
    moved = [p for p, owner in now.items() if p in last and owner != last[p]]
    return Moves(
        partitions=len(now) + sum(kept.values()),
        moved=len(moved),
        needless=(
            needless(last, now, after.keys(), kept)
            if subscriptions is None
            else needless_with_subscriptions(
                {**(released or {}), **owners(before)}, owners(after), subscriptions
            )
        ),
        fresh=len(now.keys() - last.keys()),
        released=len(held.keys() - now.keys()),
        members=_members(before, after),
    )


def compare_shared(before: Holdings, after: Holdings) -> Moves:
    """Compare two assignments of a share group, in which several members may have the same partition.

    A partition has moved if it has a new member and had other members before. `needless` is None, because no
    minimum is defined.
    """
    held_before, held_after = _NOTHING.union(*before.values()), _NOTHING.union(*after.values())
    new = {p for m, partitions in after.items() for p in partitions - before.get(m, _NOTHING)}
    return Moves(
        partitions=len(held_after),
        moved=len(held_before & new),
        needless=None,
        fresh=len(held_after - held_before),
        released=len(held_before - held_after),
        members=_members(before, after),
    )


def _changed(before: Holdings, after: Holdings) -> Collection[MemberId]:
    """Return the members whose partitions have changed, or all if a partition has two owners."""
    members = dict.fromkeys([*before, *after])
    if not (_has_single_owners(before) and _has_single_owners(after)):
        # The order of the members matters.
        return members.keys()
    return {m for m in members if m not in before or m not in after or before[m] != after[m]}


def _has_single_owners(holdings: Holdings) -> bool:
    return len(_NOTHING.union(*holdings.values())) == sum(map(len, holdings.values()))


def needless(
    last: Mapping[TopicPartition, MemberId],
    now: Mapping[TopicPartition, MemberId],
    members: Collection[MemberId],
    kept: Numbers = MappingProxyType({}),
) -> int:
    """Return by how much the moves from stayers exceed the number that an even split needs.

    `last` and `now` map partitions to their last and current owners. `members` are the current members.
    `kept` has the numbers of partitions of members without a change, whose partitions are not in `last` and
    `now`.
    """
    if not members:
        return 0
    owned = {**dict.fromkeys(members, 0), **kept}
    given_up = 0
    for partition, owner in now.items():
        stayer = last.get(partition)
        if stayer in owned:
            owned[stayer] += 1
            given_up += owner != stayer
    fair, one_more = divmod(len(now) + sum(kept.values()), len(members))
    over = sum(count > fair for count in owned.values())
    can_stay = sum(min(count, fair) for count in owned.values()) + min(one_more, over)
    return max(0, given_up - (sum(owned.values()) - can_stay))


def needless_with_subscriptions(
    last: Mapping[TopicPartition, MemberId],
    now: Mapping[TopicPartition, MemberId],
    subscriptions: Subscriptions,
) -> int:
    """Return the number of needless moves if members subscribe to different topics.

    `last` and `now` are as in `needless`. `subscriptions` has the current members.
    """
    counts: dict[str, int] = {}
    for topic, number in [*last, *now]:
        counts[topic] = max(counts.get(topic, 0), number + 1)
    held: dict[MemberId, list[TopicPartition]] = {}
    for partition, owner in last.items():
        held.setdefault(owner, []).append(partition)
    claiming = {
        member_id: MemberSubscription(
            Subscription(tuple(topics), encode_sticky_user_data(Claim(tuple(held.get(member_id, ())), 1)))
        )
        for member_id, topics in subscriptions.items()
    }
    even = {p: member_id for member_id, ps in StickyAssignor().assign(counts, claiming).items() for p in ps}
    fewest = _given_up(last, even, subscriptions)
    return max(0, _given_up(last, now, subscriptions) - fewest)


def _given_up(
    last: Mapping[TopicPartition, MemberId],
    now: Mapping[TopicPartition, MemberId],
    subscriptions: Subscriptions,
) -> int:
    """Return how many partitions move away from stayers that still subscribe to the topic."""
    return sum(
        partition.topic in subscriptions.get(owner, ()) and now.get(partition, owner) != owner
        for partition, owner in last.items()
    )


def _members(before: Holdings, after: Holdings) -> list[MemberMoves]:
    return [
        _member_moves(member_id, before.get(member_id, _NOTHING), after.get(member_id, _NOTHING))
        for member_id in dict.fromkeys([*before, *after])
    ]


def _member_moves(member_id: MemberId, before: Partitions, after: Partitions) -> MemberMoves:
    if before is after:
        return MemberMoves(member_id, len(before), len(after), {}, {})
    gained, lost = by_topic(after - before), by_topic(before - after)
    return MemberMoves(member_id, len(before), len(after), gained, lost)


COOPERATIVE = "cooperative-sticky"

_JOINS = (EntryType.MEMBER_REJOINED, EntryType.MEMBER_REPLACED)


def idle(
    held: Holdings,
    released: Mapping[TopicPartition, MemberId],
    entries: Iterable[HistoryEntry],
    span_ms: tuple[int, int],
    *,
    protocol_name: str | None,
    settled: bool,
) -> Idle:
    """Return how long partitions had no consumer during a rebalance.

    `held` is the assignment before the rebalance, `entries` are its entries, and `span_ms` is its beginning
    and end. `released` are the partitions that the previous rebalance revoked and did not assign. `settled`
    is True if the previous rebalance was completed.

    With an eager protocol a member revokes all its partitions when it rejoins, and has partitions again when
    the group is Stable. If the previous rebalance was not completed, members have no partitions during the
    whole rebalance. With the cooperative protocol members keep their partitions, so only the partitions of
    removed members and the `released` ones are idle. A member that was removed because it was silent may have
    stopped earlier; the history does not show when.
    """
    began_ms, ended_ms = span_ms
    cooperative = protocol_name == COOPERATIVE
    stops = (EntryType.MEMBER_REMOVED,) if cooperative else (*_JOINS, EntryType.MEMBER_REMOVED)
    stopped_ms: dict[MemberId, int] = {}
    for event in entries:
        if event.type in stops and event.member_id is not None:
            stopped_ms.setdefault(event.member_id, event.at_ms)
    if not settled and not cooperative:
        stopped_ms = dict.fromkeys(held, began_ms)
    times = [(len(released), ended_ms - began_ms)]
    seen = set(released)
    for member_id in reversed([m for m in held if m in stopped_ms]):
        # If a faulty leader assigned a partition to several owners, the last one counts.
        times.append((len(held[member_id] - seen), ended_ms - stopped_ms[member_id]))
        seen |= held[member_id]
    times = [(number, ms) for number, ms in times if number and ms > 0]
    return Idle(
        sum(number for number, _ in times),
        sum(number * ms for number, ms in times),
        max((ms for _, ms in times), default=0),
    )


@dataclass(slots=True)
class KnownState:
    """The state of a group between two segments of its history."""

    holdings: Holdings | None = field(default_factory=dict)  # None if unknown
    # Last owners of partitions that the last rebalance revoked and did not assign.
    released: dict[TopicPartition, MemberId] = field(default_factory=dict)
    settled: bool = True  # the last rebalance was completed
    _instances: dict[str, MemberId] = field(default_factory=dict)

    def lose_track(self) -> None:
        """Forget the assignment. It may have changed, because entries are missing."""
        self.holdings, self.released = None, {}

    def follow_static_members(self, entries: Iterable[HistoryEntry]) -> dict[MemberId, MemberId]:
        """Replace the ids of static members that returned. Return the new ids by the old ones."""
        renamed: dict[MemberId, MemberId] = {}
        for event in entries:
            if event.group_instance_id is None or event.member_id is None:
                continue
            if event.type is EntryType.MEMBER_REPLACED:
                old = event.replaced_member_id or self._instances.get(event.group_instance_id)
                if old is not None:
                    renamed = {was: event.member_id if now == old else now for was, now in renamed.items()}
                    renamed[old] = event.member_id
            self._instances[event.group_instance_id] = event.member_id
        if self.holdings is not None and renamed:
            self.holdings = {renamed.get(m, m): held for m, held in self.holdings.items()}
        self.released = {p: renamed.get(m, m) for p, m in self.released.items()}
        return renamed

    def set_holdings(self, holdings: Holdings | None) -> None:
        """Set the new assignment, and find the partitions that it released."""
        if self.holdings is not None and holdings is not None:
            now: frozenset[TopicPartition] = frozenset().union(*holdings.values())
            before = self.holdings.items()
            left = {m: had - now for m, had in before if holdings.get(m) is not had}
            self.released = owners(left)
        else:
            self.released = {}
        self.holdings = holdings
