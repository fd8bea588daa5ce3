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
them keep it. Every member is taken to subscribe to every topic that is assigned, for the history does not say
who subscribes to what.
"""

from collections.abc import Collection, Mapping
from typing import TypeAlias

from assignors.kafka.api import MemberId, TopicPartition
from assignors.kafka.protocol import ProtocolError, decode_assignment
from streaming.why.model import MemberMoves, Moves

Holdings: TypeAlias = Mapping[MemberId, frozenset[TopicPartition]]


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
    before: Holdings, after: Holdings, released: Mapping[TopicPartition, MemberId] | None = None
) -> Moves:
    """What moved from one assignment to the next. `released`: last owners of what nobody held before."""
    held, last = owners(before), {**(released or {}), **owners(before)}
    now = owners(after)
    moved = [p for p, owner in now.items() if p in last and owner != last[p]]
    return Moves(
        partitions=len(now),
        moved=len(moved),
        needless=needless(last, now, after.keys()),
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
