"""What a rebalance moved, and how much of that was needless.

A partition is *moved* if it is assigned after the rebalance and its last owner is another member than its
owner now. Its last owner is who held it before the rebalance; or, if nobody did because the rebalance before
took it away (a cooperative assignor hands a partition over in two rebalances), who held it before that one.

Of the moved partitions some had to go: those whose last owner is no member any more, and as many of the
others as an even split needs, one in which the members' counts differ by at most one. The least number of
partitions that stayers (members before and after) have to give up for some even split of the P partitions to
the n members is

    sum of a(m) - sum of min(a(m), q) - min(r, number of m with a(m) > q)     with q, r = divmod(P, n)

where a(m) is how many of the P partitions the stayer m owned last: everybody may keep q, and r of them one
more. What stayers gave up beyond that is *needless*: another assignment, at least as even, would have let
them keep it. Where members subscribe to different topics there is no such formula: the least number is what
`sticky` takes from them, which there is exact.
"""

from collections.abc import Collection, Mapping
from typing import TypeAlias

from assignors.kafka.api import MemberId, MemberSubscription, Subscription, TopicPartition
from assignors.kafka.consumer_protocol import ProtocolError, decode_assignment
from assignors.kafka.sticky.assignor import StickyAssignor
from assignors.kafka.user_data import Claim, encode_sticky_user_data
from insight.why.model import MemberMoves, Moves

Holdings: TypeAlias = Mapping[MemberId, frozenset[TopicPartition]]
Subscriptions: TypeAlias = Mapping[MemberId, Collection[str]]


def read_holdings(assignments: Mapping[MemberId, bytes]) -> Holdings | None:
    """Who holds what; None if an assignment is not one of Kafka's consumer. No bytes are no partitions."""
    try:
        return {
            member_id: frozenset(decode_assignment(data).partitions) if data else frozenset()
            for member_id, data in assignments.items()
        }
    except ProtocolError:
        return None


def owners(holdings: Holdings) -> dict[TopicPartition, MemberId]:
    """Each partition's owner; of several, which only a faulty leader makes, the first."""
    found: dict[TopicPartition, MemberId] = {}
    for member_id, partitions in holdings.items():
        for partition in partitions:
            found.setdefault(partition, member_id)
    return found


def compare(
    before: Holdings,
    after: Holdings,
    released: Mapping[TopicPartition, MemberId] | None = None,
    subscriptions: Subscriptions | None = None,
) -> Moves:
    """What moved from one assignment to the next.

    `released`: last owners of what nobody held before. `subscriptions` are topics by member, None where all
    subscribe to the same.
    """
    held, last = owners(before), {**(released or {}), **owners(before)}
    now = owners(after)
    moved = [p for p, owner in now.items() if p in last and owner != last[p]]
    return Moves(
        partitions=len(now),
        moved=len(moved),
        needless=(
            needless(last, now, after.keys())
            if subscriptions is None
            else needless_of_unequal(last, now, subscriptions)
        ),
        fresh=len(now.keys() - last.keys()),
        released=len(held.keys() - now.keys()),
        members=[
            _of_member(member_id, before.get(member_id, frozenset()), after.get(member_id, frozenset()))
            for member_id in dict.fromkeys([*before, *after])
        ],
    )


def needless(
    last: Mapping[TopicPartition, MemberId],
    now: Mapping[TopicPartition, MemberId],
    members: Collection[MemberId],
) -> int:
    """How many partitions stayers gave up beyond what an even split needs; `members` are those of now."""
    if not members:
        return 0
    owned = dict.fromkeys(members, 0)
    given_up = 0
    for partition, owner in now.items():
        stayer = last.get(partition)
        if stayer in owned:
            owned[stayer] += 1
            given_up += owner != stayer
    fair, one_more = divmod(len(now), len(members))
    over = sum(count > fair for count in owned.values())
    can_stay = sum(min(count, fair) for count in owned.values()) + min(one_more, over)
    return max(0, given_up - (sum(owned.values()) - can_stay))


def needless_of_unequal(
    last: Mapping[TopicPartition, MemberId],
    now: Mapping[TopicPartition, MemberId],
    subscriptions: Subscriptions,
) -> int:
    """The same where members, those of now, subscribe to different topics."""
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
    """How many partitions go from members who stay, and still subscribe to the topic, to others."""
    return sum(
        partition.topic in subscriptions.get(owner, ()) and now.get(partition, owner) != owner
        for partition, owner in last.items()
    )


def _of_member(
    member_id: MemberId, before: frozenset[TopicPartition], after: frozenset[TopicPartition]
) -> MemberMoves:
    return MemberMoves(
        member_id, len(before), len(after), _by_topic(after - before), _by_topic(before - after)
    )


def _by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics
