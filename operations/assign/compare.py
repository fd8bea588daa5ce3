"""A comparison of strategies (Kafka's assignors, `lag-aware`, and RocketMQ's strategies) for one group, also
a live one: the members' shares, how even they are, and what moves.

`kafka_why.why.moves` defines a *move* and a *needless* move. The definition counts partitions only, so
a move that `lag-aware` makes because of weights, or another strategy because of racks, counts as needless.

For RocketMQ's strategies, partitions stand for queues, members for clients, and racks for machine rooms.
MACHINE_ROOM is configured to consume from the rooms that have members. As in RocketMQ, each topic is divided
among *all* members, whatever they subscribe to. The share of a member that does not subscribe to the topic is
consumed by no member.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from statistics import pstdev
from types import MappingProxyType
from typing import Final

import msgspec
import re2
from msgspec import Struct

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from assignors.lag_aware import LagAwareAssignor
from assignors.rocketmq.api import (
    AllocateMessageQueueStrategy,
    IllegalArgumentException,
)
from assignors.rocketmq.strategies import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
)
from kafka_why.assign.model import ByTopic, GroupSpec, InputError, Member
from kafka_why.contract.kafka.history import DEAD, SHARE, GroupState
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    ProtocolError,
    TopicPartition,
    by_topic,
    decode_subscription,
)
from kafka_why.contract.rocketmq.requests import MessageQueue, sort_client_ids, sort_queues
from kafka_why.groups.describe import PartitionRow, assigned_partitions
from kafka_why.sticky.api import Assignor, members_in_order
from kafka_why.sticky.assignor import CooperativeStickyAssignor
from kafka_why.why.model import Moves
from kafka_why.why.moves import Holdings, compare, owners
from kafka_why.wording import Column, Names, VisibleText, render_table, topics_text, visible_text
from records.topic_patterns import matching

KAFKA: Final[Mapping[str, Assignor]] = MappingProxyType({**ASSIGNORS, **BROKER_ASSIGNORS})
CLIENT_STRATEGIES: Final = tuple(ASSIGNORS)

_NEARBY_PREFIX: Final = "MACHINE_ROOM_NEARBY-"
_PLAIN_ROCKETMQ: Final = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")
_NEEDING_ROOMS: Final = ("MACHINE_ROOM", *(_NEARBY_PREFIX + name for name in _PLAIN_ROCKETMQ))
# The names of all strategies.
STRATEGIES: Final = (*KAFKA, LagAwareAssignor.name, *_PLAIN_ROCKETMQ, *_NEEDING_ROOMS)

# The broker of a queue whose broker is unknown: RocketMQ's default name.
_DEFAULT_BROKER: Final = "broker-a"


def check_strategy(name: str) -> str:
    """Return the name. Raises InputError for an unknown strategy."""
    if name not in STRATEGIES:
        raise InputError(f"unknown strategy {name!r}; known strategies: {', '.join(STRATEGIES)}")
    return name


def rounds(strategy: str, group: GroupSpec, held: Holdings) -> list[Holdings]:
    """Return the assignment after each rebalance that the strategy needs. Members held `held` before.

    `cooperative-sticky` needs a second rebalance to hand over moved partitions. Raises InputError for a
    strategy that is unknown or refuses this group.
    """
    check_strategy(strategy)
    if strategy == LagAwareAssignor.name:
        return _kafka_rounds(LagAwareAssignor(group.weights), group, held)
    if strategy in KAFKA:
        return _kafka_rounds(KAFKA[strategy], group, held)
    return [_rocketmq_shares(strategy, group)]


def _kafka_rounds(assignor: Assignor, group: GroupSpec, held: Holdings) -> list[Holdings]:
    """Return the assignment after each rebalance, as in `rounds`. Only `cooperative-sticky` needs several."""
    assignments: list[Holdings] = []
    for generation_id in count(1):
        subscriptions = group.subscriptions(held, generation_id)
        assigned = assignor.assign(group.topics, subscriptions, group.partition_racks())
        after = {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}
        assignments.append(after)
        if assignor.name != CooperativeStickyAssignor.name or not _must_give_up(held, after):
            break
        held = after
    return assignments


def _must_give_up(held: Holdings, after: Holdings) -> bool:
    """Return True if a member has to give up a partition. It then joins again."""
    return any(held.get(member_id, frozenset()) - partitions for member_id, partitions in after.items())


def _rocketmq_shares(name: str, group: GroupSpec) -> Holdings:
    """Return the partitions that each member would consume: its share of the topics that it subscribes to."""
    strategy = _rocketmq_strategy(name, group)
    client_ids = sort_client_ids(group.members)
    shares: dict[str, set[TopicPartition]] = {member_id: set() for member_id in client_ids}
    for topic in group.topics:
        queues = _queues(group, topic)
        for member_id in client_ids:
            if topic not in group.members[member_id].topics:
                continue
            try:
                share = strategy.allocate(member_id, queues, client_ids)
            except IllegalArgumentException as error:
                raise InputError(f"{name} refuses topic {topic}: {error}") from error
            shares[member_id] |= {TopicPartition(queue.topic, queue.queue_id) for queue in share}
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _rocketmq_strategy(name: str, group: GroupSpec) -> AllocateMessageQueueStrategy:
    """Return the strategy of this name for the group. Raise InputError if it needs rooms that are unknown."""
    rooms = {member.rack for member in group.members.values() if member.rack}
    if name in _NEEDING_ROOMS and not (rooms and group.racks):
        raise InputError(f"{name} needs the racks of members and partitions, which are unknown")
    strategies: tuple[AllocateMessageQueueStrategy, ...] = (
        AllocateMessageQueueAveragely(),
        AllocateMessageQueueAveragelyByCircle(),
        AllocateMessageQueueConsistentHash(),
        AllocateMessageQueueByMachineRoom(rooms),
    )
    inner_name = name.removeprefix(_NEARBY_PREFIX)
    strategy = next(strategy for strategy in strategies if strategy.name == inner_name)
    if not name.startswith(_NEARBY_PREFIX):
        return strategy
    return AllocateMachineRoomNearby(
        strategy, _room_of_broker, lambda client_id: group.members[client_id].rack
    )


def _queues(group: GroupSpec, topic: str) -> list[MessageQueue]:
    """Return a queue for each partition. The name of its broker begins with the partition's first rack."""
    racks_by_partition = group.racks.get(topic, [()] * group.topics[topic])
    brokers = (f"{racks[0]}@{_DEFAULT_BROKER}" if racks else _DEFAULT_BROKER for racks in racks_by_partition)
    return sort_queues(MessageQueue(topic, broker, number) for number, broker in enumerate(brokers))


def _room_of_broker(queue: MessageQueue) -> str:
    """Return the room in the name of the queue's broker, or "" if it has none."""
    return queue.broker_name.rpartition("@")[0]


# By state, the reason why a group in this state has no assignment to compare.
_NOT_COMPARED: Final[Mapping[str, str]] = MappingProxyType(
    {DEAD: "does not exist", GroupState.EMPTY: "has no members"}
)


def live_group(
    described: GroupSnapshot, topics: Mapping[str, int], rows: Iterable[PartitionRow]
) -> GroupSpec:
    """Return the group with its subscriptions and assignments. A partition's weight is its lag in records.

    `topics` are the existing topics that members subscribe to. Other topics are omitted. Racks are omitted,
    because the partitions' racks are unknown here.

    Raises InputError for a share group, for a group without members, and for a classic group that is not
    Stable. The coordinator returns the subscriptions of a classic group only if it is Stable.
    """
    if described.group_type == SHARE:
        raise InputError(f"group {described.group_id} is a share group, whose assignors are of another kind")
    state = described.state
    if state in _NOT_COMPARED or (not described.consumer and state != GroupState.STABLE):
        reason = _NOT_COMPARED.get(state, f"is {state}: retry when it is Stable")
        raise InputError(f"group {described.group_id} {reason}")
    members = {member.member_id: _member(member, topics) for member in described.members}
    subscribed = {topic for member in members.values() for topic in member.topics}
    existing = {topic: topics[topic] for topic in sorted(subscribed)}
    partitions = frozenset(
        TopicPartition(topic, n) for topic, count in existing.items() for n in range(count)
    )
    lags = {TopicPartition(row.topic, row.partition): row.lag for row in rows}
    return GroupSpec(
        topics=existing,
        members=members,
        current={
            m.member_id: partitions.intersection(assigned_partitions(m) or ()) for m in described.members
        },
        weights={p: lag for p in partitions if (lag := lags.get(p)) is not None and lag > 0},
    )


def subscribed_topics(described: GroupSnapshot, topics: Iterable[str]) -> set[str]:
    """Return the topics that members subscribe to. Raises InputError if a subscription cannot be read.

    A topic that a member names need not exist. A pattern selects from `topics`.
    """
    return {topic for member in described.members for topic in _subscribed(member, topics)}


def _member(member: MemberSnapshot, topics: Mapping[str, int]) -> Member:
    """Return a member with its subscribed topics that exist."""
    existing = tuple(topic for topic in _subscribed(member, topics) if topic in topics)
    return Member(existing, member.group_instance_id)


def _subscribed(member: MemberSnapshot, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that a member subscribes to by name, and the matches of its pattern in `topics`.

    Raises InputError.
    """
    if (details := member.consumer) is not None:  # a member of a group with epochs
        pattern = details.subscribed_topic_regex
        try:
            matched = matching(pattern, topics) if pattern else []
        except re2.error as error:
            raise InputError(f"the pattern {pattern!r} of member {member.member_id} has no result") from error
        return tuple(sorted({*details.subscribed_topic_names, *matched}))
    if not member.metadata:
        return ()
    try:
        return decode_subscription(member.metadata).topics
    except ProtocolError as error:
        raise InputError(f"the subscription of member {member.member_id} cannot be read: {error}") from error


NOW = "now"


class MemberShare(Struct, frozen=True):
    """A member's share."""

    member_id: MemberId
    partitions: int
    weight: int | None  # None if no partition has a weight
    assignment: ByTopic


class Spread(Struct, frozen=True):
    """The spread of the members' shares: the least, the most, and their standard deviation."""

    least: int
    most: int
    stddev: float


class StrategyResult(Struct, frozen=True, kw_only=True):
    """The result of a strategy for a group."""

    strategy: str  # `NOW` for the current assignment
    shares: list[MemberShare]
    nobodys: ByTopic  # partitions that no member consumes, or a streams group's tasks with too few copies
    spread: Spread
    weight_spread: Spread | None
    moves: Moves | None = None  # None if the current assignment is unknown
    rounds: int = 1  # number of rebalances needed
    handed_over: int = 0  # number of partitions that the first rebalance revokes and the second one assigns
    noun: str = "partition"  # `task` for a streams group: shares are then tasks by role and subtopology


def strategy_result(strategy: str, before: GroupSpec, after: GroupSpec) -> StrategyResult:
    """Return the strategy's result for the group `after`, with its moves. Raises InputError.

    Members hold `after.current`. If that is None and the group has changed, they hold what the same strategy
    assigned in `before`: this shows what each strategy moves when a member joins or leaves.
    """
    current = after.current
    if current is None and before.members != after.members:
        current = rounds(strategy, before, {})[-1]
    assignments = rounds(strategy, after, current or {})
    first, last = assignments[0], assignments[-1]
    outcome = assignment_result(strategy, after, last)
    if current is None:
        return outcome
    return msgspec.structs.replace(
        outcome,
        moves=compare(current, last, subscriptions={m: member.topics for m, member in after.members.items()}),
        rounds=len(assignments),
        handed_over=len(owners(last).keys() - owners(first).keys()),
    )


def assignment_result(strategy: str, group: GroupSpec, held: Holdings) -> StrategyResult:
    """Return the result of the assignment `held`, without moves. Holders that are not members are ignored."""
    shares = [
        _member_share(group, member_id, held) for member_id in members_in_order(group.subscriptions({}, 1))
    ]
    consumed = {partition for member_id in group.members for partition in held.get(member_id, ())}
    weights = [share.weight for share in shares if share.weight is not None]
    return StrategyResult(
        strategy=strategy,
        shares=shares,
        nobodys=by_topic(partition for partition in group.partitions() if partition not in consumed),
        spread=spread_of([share.partitions for share in shares]),
        weight_spread=spread_of(weights) if weights else None,
    )


def _member_share(group: GroupSpec, member_id: MemberId, held: Holdings) -> MemberShare:
    partitions = held.get(member_id, frozenset())
    weight = group.weight(partitions) if group.weights else None
    return MemberShare(member_id, len(partitions), weight, by_topic(partitions))


def spread_of(values: Sequence[int]) -> Spread:
    """Return the spread of the members' shares."""
    return Spread(min(values), max(values), round(pstdev(values), 2))


def outcome_text(outcome: StrategyResult, names: Names) -> VisibleText:
    """Return the strategy's name, a line for each member, and remarks."""
    return visible_text([outcome.strategy, _members_table(outcome, names), *_remark_lines(outcome)])


def summary_text(outcomes: Sequence[StrategyResult]) -> VisibleText:
    """Return a table with a line for each strategy."""
    has_weights = any(outcome.weight_spread for outcome in outcomes)
    has_moves = any(outcome.moves for outcome in outcomes)
    headings = [
        *("STRATEGY", "LEAST", "MOST", "STDDEV"),
        *(("LEAST-WEIGHT", "MOST-WEIGHT") if has_weights else ()),
        "NOBODYS",
        *(("MOVED", "NEEDLESSLY", "ROUNDS") if has_moves else ()),
    ]
    # The last cells of a row are about moves. They are cut off if there are no headings for moves.
    rows = [_summary_row(outcome, has_weights=has_weights)[: len(headings)] for outcome in outcomes]
    return render_table([Column(heading, 0) for heading in headings], rows)


def _members_table(outcome: StrategyResult, names: Names) -> VisibleText:
    moves = {} if outcome.moves is None else {m.member_id: m for m in outcome.moves.members}
    headings = [
        *("MEMBER", f"#{outcome.noun.upper()}S"),
        *(("WEIGHT",) if outcome.weight_spread else ()),
        *(("GAINS", "LOSES") if moves else ()),
        "ASSIGNMENT",
    ]
    rows = [
        [
            *(names.of(share.member_id), share.partitions),
            *((share.weight,) if outcome.weight_spread else ()),
            *(
                map(_count_partitions, (moves[share.member_id].gained, moves[share.member_id].lost))
                if moves
                else ()
            ),
            topics_text(share.assignment) or None,
        ]
        for share in outcome.shares
    ]
    return render_table([Column(heading, 0) for heading in headings], rows)


def _remark_lines(outcome: StrategyResult) -> Iterator[str]:
    """Yield the lines below the table of members."""
    noun = f"{outcome.noun}s"
    yield f"spread: {_spread_text(outcome.spread)} {noun} per member"
    if outcome.weight_spread is not None:
        yield f"weight: {_spread_text(outcome.weight_spread)} a member"
    if outcome.moves is not None:
        moves = outcome.moves
        needlessly = "" if moves.needless is None else f", {moves.needless} needlessly"
        yield f"moved: {moves.moved} of {moves.partitions} {noun}{needlessly}"
    if outcome.rounds > 1:
        yield (
            f"rounds: {outcome.rounds}; the first revokes {outcome.handed_over} partitions, "
            "the second assigns them, all other partitions stay consumed"
        )
    if outcome.nobodys:
        remark = (
            "no member consumes" if outcome.noun == "partition" else "too few processes for all copies of"
        )
        yield f"{remark} {topics_text(outcome.nobodys)}"


def _spread_text(spread: Spread) -> str:
    return f"{spread.least} to {spread.most}, standard deviation {spread.stddev}"


def _summary_row(outcome: StrategyResult, *, has_weights: bool) -> list[object]:
    """Return the cells of `summary_text`. A cell without a value is None."""
    weights, moves = outcome.weight_spread, outcome.moves
    return [
        *(outcome.strategy, outcome.spread.least, outcome.spread.most, outcome.spread.stddev),
        *([weights and weights.least, weights and weights.most] if has_weights else []),
        _count_partitions(outcome.nobodys),
        *((None, None, None) if moves is None else (moves.moved, moves.needless, outcome.rounds)),
    ]


def _count_partitions(by_topic: ByTopic) -> int:
    return sum(map(len, by_topic.values()))
