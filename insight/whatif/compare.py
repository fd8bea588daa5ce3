"""Strategies side by side: who gets what, how even that is, and what moves.

What a *move* is, and which are *needless*, is as in `insight.why.moves`. It goes by numbers of partitions:
what `lag-aware` moves for the sake of weights, or any other for the sake of racks, counts as needless.
"""

from collections.abc import Iterable, Sequence
from statistics import pstdev

import msgspec
from msgspec import Struct

from assignors.kafka.api import MemberId, TopicPartition
from assignors.kafka.members import members_in_order
from insight.whatif.model import Group
from insight.whatif.strategies import rounds
from insight.why.model import Moves
from insight.why.moves import Holdings, compare, owners

NOW = "now"
ByTopic = dict[str, list[int]]


class Share(Struct, frozen=True):
    """What one member gets; `weight` is None where nothing has a weight."""

    member_id: MemberId
    partitions: int
    weight: int | None
    assignment: ByTopic


class Spread(Struct, frozen=True):
    """How even the members' shares are."""

    least: int
    most: int
    stddev: float


class Outcome(Struct, frozen=True, kw_only=True):
    """What a strategy makes of a group. `strategy` is `NOW` for the assignment that there is.

    `moves` is None where it is not known who holds what now. `rounds` is the number of rebalances it takes;
    `handed_over` are partitions that the first one takes from a member, for the second one to give out.
    `nobodys` are partitions that no member consumes.
    """

    strategy: str
    shares: list[Share]
    nobodys: ByTopic
    spread: Spread
    weight_spread: Spread | None
    moves: Moves | None = None
    rounds: int = 1
    handed_over: int = 0


def standing(group: Group, current: Holdings) -> Outcome:
    """The assignment that there is, as far as its holders are members."""
    return _outcome(NOW, group, current)


def outcomes(before: Group, after: Group, strategies: Iterable[str]) -> list[Outcome]:
    """What each strategy makes of the group `after`.

    Members hold what `after.current` says. If that is None and the group was another one before, they hold
    what the same strategy made of that: so strategies are compared by what it costs each that a member comes
    or goes. Raises InputError.
    """
    return [_dealt(strategy, before, after) for strategy in strategies]


def _dealt(strategy: str, before: Group, after: Group) -> Outcome:
    current = after.current
    if current is None and before.members != after.members:
        current = rounds(strategy, before, {})[-1]
    done = rounds(strategy, after, current or {})
    outcome = _outcome(strategy, after, done[-1])
    if current is None:
        return outcome
    return msgspec.structs.replace(
        outcome,
        moves=compare(
            current, done[-1], subscriptions={m: member.topics for m, member in after.members.items()}
        ),
        rounds=len(done),
        handed_over=len(owners(done[-1]).keys() - owners(done[0]).keys()),
    )


def _outcome(strategy: str, group: Group, held: Holdings) -> Outcome:
    shares = [_share(group, member_id, held) for member_id in members_in_order(group.subscriptions({}, 1))]
    consumed = {partition for member_id in group.members for partition in held.get(member_id, ())}
    weights = [share.weight for share in shares if share.weight is not None]
    return Outcome(
        strategy=strategy,
        shares=shares,
        nobodys=by_topic(partition for partition in group.partitions() if partition not in consumed),
        spread=_spread([share.partitions for share in shares]),
        weight_spread=_spread(weights) if weights else None,
    )


def _share(group: Group, member_id: MemberId, held: Holdings) -> Share:
    partitions = held.get(member_id, frozenset())
    weight = group.weight(partitions) if group.weights else None
    return Share(member_id, len(partitions), weight, by_topic(partitions))


def _spread(values: Sequence[int]) -> Spread:
    return Spread(min(values), max(values), round(pstdev(values), 2))


def by_topic(partitions: Iterable[TopicPartition]) -> ByTopic:
    """Partition numbers by topic, all in order."""
    topics: ByTopic = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics
