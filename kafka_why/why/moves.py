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
is then the number of partitions that StickyAssignor moves from the stayers, because it finds the minimum.
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
from kafka_why.grouping import grouped
from kafka_why.sticky.assignor import StickyAssignor
from kafka_why.why.model import Idle, MemberMoves, Moves

Partitions: TypeAlias = frozenset[TopicPartition]
Holdings: TypeAlias = Mapping[MemberId, Partitions]
"""The partitions of each member."""
Numbers: TypeAlias = Mapping[MemberId, int]
"""The number of partitions of each member."""


def read_holdings(assignments: Mapping[MemberId, bytes]) -> Holdings | None:
    """Return an assignment, or None if it is not in the format of Kafka's consumer."""
    try:
        return {member_id: _decode(data) for member_id, data in assignments.items()}
    except ProtocolError:
        return None


def _decode(data: bytes) -> Partitions:
    return frozenset(decode_assignment(data).partitions if data else ())


class AssignmentDecoder:
    """A decoder of leaders' assignments, in the order of the history.

    A member's bytes that are also in the previous assignment are not decoded again. Only the last assignment
    stays in memory, but the numbers of partitions of all assignments do.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, Partitions] = {}  # the decoded bytes of the last assignment
        self._numbers: dict[tuple[str, int], Numbers | None] = {}  # by incarnation and seq of the entry

    def holdings(self, entry: HistoryEntry) -> Holdings | None:
        """Return the assignment in an entry, or None if it has none in the format of Kafka's consumer."""
        if entry.assignments is None:
            return None
        holdings: Holdings | None
        try:
            holdings = self._decode_all(entry.assignments)
        except ProtocolError:
            holdings = None
        self._numbers[entry.incarnation, entry.seq] = (
            None if holdings is None else {member_id: len(held) for member_id, held in holdings.items()}
        )
        return holdings

    def numbers(self, entry: HistoryEntry) -> Numbers | None:
        """Return each member's number of partitions in an entry, or None if `holdings` returns None."""
        key = entry.incarnation, entry.seq
        if key not in self._numbers:
            self.holdings(entry)
        return self._numbers.get(key)

    def _decode_all(self, assignments: Mapping[MemberId, bytes]) -> Holdings:
        previous, self._last = self._last, {}
        holdings: dict[MemberId, Partitions] = {}
        for member_id, data in assignments.items():
            held = self._last.get(data)  # an empty set is a result, too
            if held is None:
                held = previous.get(data)
            if held is None:
                held = _decode(data)
            self._last[data] = holdings[member_id] = held
        return holdings


Subscriptions: TypeAlias = Mapping[MemberId, Collection[str]]
"""The topics of each member."""
_NOTHING: Final[Partitions] = frozenset()


def owners(holdings: Holdings) -> dict[TopicPartition, MemberId]:
    """Return each partition's owner. If a faulty leader assigned several owners, return the first one."""
    owner_of: dict[TopicPartition, MemberId] = {}
    for member_id, partitions in holdings.items():
        for partition in partitions:
            owner_of.setdefault(partition, member_id)
    return owner_of


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
    # Members whose partitions have not changed move nothing, so only their numbers of partitions count.
    changed = _changed_members(before, after)
    unchanged = {member_id: len(held) for member_id, held in after.items() if member_id not in changed}
    owner_before = owners({member_id: before[member_id] for member_id in before if member_id in changed})
    owner_now = owners({member_id: after[member_id] for member_id in after if member_id in changed})
    last_owner = {**(released or {}), **owner_before}
    moved = [p for p, owner in owner_now.items() if p in last_owner and owner != last_owner[p]]
    return Moves(
        partitions=len(owner_now) + sum(unchanged.values()),
        moved=len(moved),
        needless=(
            needless(last_owner, owner_now, after.keys(), unchanged)
            if subscriptions is None
            else needless_with_subscriptions(
                {**(released or {}), **owners(before)}, owners(after), subscriptions
            )
        ),
        fresh=len(owner_now.keys() - last_owner.keys()),
        released=len(owner_before.keys() - owner_now.keys()),
        members=_moves_by_member(before, after),
    )


def compare_shared(before: Holdings, after: Holdings) -> Moves:
    """Compare two assignments of a share group, in which several members may have the same partition.

    A partition has moved if it has a new member and had other members before. `needless` is None, because no
    minimum is defined.
    """
    held_before, held_after = _NOTHING.union(*before.values()), _NOTHING.union(*after.values())
    with_new_member = {p for m, partitions in after.items() for p in partitions - before.get(m, _NOTHING)}
    return Moves(
        partitions=len(held_after),
        moved=len(held_before & with_new_member),
        needless=None,
        fresh=len(held_after - held_before),
        released=len(held_before - held_after),
        members=_moves_by_member(before, after),
    )


def _changed_members(before: Holdings, after: Holdings) -> Collection[MemberId]:
    """Return the members whose partitions have changed, or all members if a partition has two owners."""
    members = dict.fromkeys([*before, *after])
    if not (_has_single_owners(before) and _has_single_owners(after)):
        # `owners` takes the first member that has the partition, so it needs all members in their order.
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
    Members whose partitions did not change may be left out of `last` and `now`. Then `kept` has their numbers
    of partitions. The computation is the formula in the module's docstring.
    """
    if not members:
        return 0
    owned_last = {**dict.fromkeys(members, 0), **kept}  # a(m) of the formula
    given_up = 0  # number of partitions that stayers gave up
    for partition, owner in now.items():
        stayer = last.get(partition)
        if stayer in owned_last:
            owned_last[stayer] += 1
            given_up += owner != stayer
    fair, remainder = divmod(len(now) + sum(kept.values()), len(members))  # q and r of the formula
    above_fair = sum(count > fair for count in owned_last.values())
    can_stay = sum(min(count, fair) for count in owned_last.values()) + min(remainder, above_fair)
    necessary = sum(owned_last.values()) - can_stay
    return max(0, given_up - necessary)


def needless_with_subscriptions(
    last: Mapping[TopicPartition, MemberId],
    now: Mapping[TopicPartition, MemberId],
    subscriptions: Subscriptions,
) -> int:
    """Return the number of needless moves if members subscribe to different topics.

    `last` and `now` are as in `needless`. `subscriptions` has the topics of each current member.
    """
    counts: dict[str, int] = {}
    for topic, number in [*last, *now]:  # the other partitions of the topics are unknown
        counts[topic] = max(counts.get(topic, 0), number + 1)
    owned_last = grouped((owner, partition) for partition, owner in last.items())
    # The assignor leaves as many partitions as it can with the members that claim to own them.
    with_claims = {
        member_id: MemberSubscription(
            Subscription(
                tuple(topics),
                encode_sticky_user_data(Claim(tuple(owned_last.get(member_id, ())), generation_id=1)),
            )
        )
        for member_id, topics in subscriptions.items()
    }
    assignment = StickyAssignor().assign(counts, with_claims)
    even = {p: member_id for member_id, partitions in assignment.items() for p in partitions}
    return max(0, _given_up(last, now, subscriptions) - _given_up(last, even, subscriptions))


def _given_up(
    last: Mapping[TopicPartition, MemberId],
    now: Mapping[TopicPartition, MemberId],
    subscriptions: Subscriptions,
) -> int:
    """Return how many assigned partitions move away from stayers that still subscribe to the topic.

    `last` and `now` map partitions to their last and current owners.
    """
    return sum(
        partition.topic in subscriptions.get(owner, ()) and now.get(partition, owner) != owner
        for partition, owner in last.items()
    )


def _moves_by_member(before: Holdings, after: Holdings) -> list[MemberMoves]:
    return [
        _member_moves(member_id, before.get(member_id, _NOTHING), after.get(member_id, _NOTHING))
        for member_id in dict.fromkeys([*before, *after])
    ]


def _member_moves(member_id: MemberId, before: Partitions, after: Partitions) -> MemberMoves:
    # True for most members, because AssignmentDecoder reuses the set if the bytes are unchanged.
    if before is after:
        return MemberMoves(member_id, len(before), len(after), {}, {})
    gained, lost = by_topic(after - before), by_topic(before - after)
    return MemberMoves(member_id, len(before), len(after), gained, lost)


COOPERATIVE = "cooperative-sticky"

# Entries at which a member of an eager protocol loses all its partitions.
_EAGER_STOPS = (EntryType.MEMBER_REJOINED, EntryType.MEMBER_REPLACED, EntryType.MEMBER_REMOVED)


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
    is_cooperative = protocol_name == COOPERATIVE
    stops = (EntryType.MEMBER_REMOVED,) if is_cooperative else _EAGER_STOPS
    stopped_ms: dict[MemberId, int] = {}
    for event in entries:
        if event.type in stops and event.member_id is not None:
            stopped_ms.setdefault(event.member_id, event.at_ms)
    if not settled and not is_cooperative:
        stopped_ms = dict.fromkeys(held, began_ms)
    # Numbers of partitions, each with the time for which they were idle.
    idle_times = [(len(released), ended_ms - began_ms)]
    counted = set(released)
    for member_id in reversed([m for m in held if m in stopped_ms]):
        # If a faulty leader assigned a partition to several owners, the last one counts.
        idle_times.append((len(held[member_id] - counted), ended_ms - stopped_ms[member_id]))
        counted |= held[member_id]
    idle_times = [(number, ms) for number, ms in idle_times if number and ms > 0]
    return Idle(
        partitions=sum(number for number, _ in idle_times),
        partition_ms=sum(number * ms for number, ms in idle_times),
        longest_ms=max((ms for _, ms in idle_times), default=0),
    )


@dataclass(slots=True)
class KnownState:
    """The state of a group between two rebalances, as the history shows it."""

    holdings: Holdings | None = field(default_factory=dict)  # None if unknown
    # Last owners of partitions that the last rebalance revoked and did not assign.
    released: dict[TopicPartition, MemberId] = field(default_factory=dict)
    settled: bool = True  # the last rebalance was completed
    _member_by_instance: dict[str, MemberId] = field(default_factory=dict)  # static members

    def lose_track(self) -> None:
        """Forget the assignment. It may have changed, because entries are missing."""
        self.holdings, self.released = None, {}

    def follow_static_members(self, entries: Iterable[HistoryEntry]) -> dict[MemberId, MemberId]:
        """Replace the ids of static members that came back. Return the new ids by the old ones."""
        renamed: dict[MemberId, MemberId] = {}
        for event in entries:
            member_id, instance_id = event.member_id, event.group_instance_id
            if instance_id is None or member_id is None:
                continue
            if event.type is EntryType.MEMBER_REPLACED:
                replaced_id = event.replaced_member_id or self._member_by_instance.get(instance_id)
                if replaced_id is not None:
                    # The oldest id of a member that came back several times maps to its newest id.
                    renamed = {
                        old_id: member_id if new_id == replaced_id else new_id
                        for old_id, new_id in renamed.items()
                    }
                    renamed[replaced_id] = member_id
            self._member_by_instance[instance_id] = member_id
        if self.holdings is not None and renamed:
            self.holdings = {renamed.get(m, m): held for m, held in self.holdings.items()}
        self.released = {p: renamed.get(m, m) for p, m in self.released.items()}
        return renamed

    def set_holdings(self, holdings: Holdings | None) -> None:
        """Set the new assignment, and find the `released` partitions: those that it does not assign."""
        self.released = {}
        if self.holdings is not None and holdings is not None:
            assigned = _NOTHING.union(*holdings.values())
            # Unchanged members, which are most, released nothing.
            changed = {m: held for m, held in self.holdings.items() if holdings.get(m) != held}
            self.released = owners({m: held - assigned for m, held in changed.items()})
        self.holdings = holdings
