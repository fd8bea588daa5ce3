"""Strategies side by side, also as tables: the members' shares, how even they are, and what moves.

`kafka_why.why.moves` defines a *move* and a *needless* move. The definition goes by numbers of partitions, so
a move that `lag-aware` makes because of weights, or another strategy because of racks, counts as needless.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import pstdev

import msgspec
from msgspec import Struct

from kafka_why.assign.model import GroupSpec
from kafka_why.assign.parsing import ByTopic
from kafka_why.contract.protocols.subscriptions import MemberId, by_topic
from kafka_why.sticky.api import members_in_order
from kafka_why.why.model import Moves
from kafka_why.why.moves import Holdings, compare, owners
from kafka_why.wording import Column, Names, VisibleText, number_list, render_table, visible_text
from operations.assign.strategies import rounds

NOW = "now"


class MemberShare(Struct, frozen=True):
    """A member's share. `weight` is None if no partition has a weight."""

    member_id: MemberId
    partitions: int
    weight: int | None
    assignment: ByTopic


class Spread(Struct, frozen=True):
    """The differences between the members' shares."""

    least: int
    most: int
    stddev: float


class StrategyResult(Struct, frozen=True, kw_only=True):
    """The result of a strategy for a group. `strategy` is `NOW` for the current assignment.

    `moves` is None if the current assignment is unknown. `rounds` is the number of rebalances needed;
    `handed_over` is the number of partitions that the first rebalance revokes and the second one assigns.
    `nobodys` are partitions that no member consumes.
    """

    strategy: str
    shares: list[MemberShare]
    nobodys: ByTopic
    spread: Spread
    weight_spread: Spread | None
    moves: Moves | None = None
    rounds: int = 1
    handed_over: int = 0


def current_result(group: GroupSpec, current: Holdings) -> StrategyResult:
    """Return the current assignment as a result, without holders that are not members."""
    return _outcome(NOW, group, current)


def outcomes(before: GroupSpec, after: GroupSpec, strategies: Iterable[str]) -> list[StrategyResult]:
    """Return the result of each strategy for the group `after`.

    Members hold the partitions of `after.current`. If that is None and the group has changed, members hold
    what the same strategy assigned in `before`: the comparison then shows what each strategy moves when a
    member joins or leaves. Raises InputError.
    """
    return [_result(strategy, before, after) for strategy in strategies]


def _result(strategy: str, before: GroupSpec, after: GroupSpec) -> StrategyResult:
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


def _outcome(strategy: str, group: GroupSpec, held: Holdings) -> StrategyResult:
    shares = [_share(group, member_id, held) for member_id in members_in_order(group.subscriptions({}, 1))]
    consumed = {partition for member_id in group.members for partition in held.get(member_id, ())}
    weights = [share.weight for share in shares if share.weight is not None]
    return StrategyResult(
        strategy=strategy,
        shares=shares,
        nobodys=by_topic(partition for partition in group.partitions() if partition not in consumed),
        spread=_spread([share.partitions for share in shares]),
        weight_spread=_spread(weights) if weights else None,
    )


def _share(group: GroupSpec, member_id: MemberId, held: Holdings) -> MemberShare:
    partitions = held.get(member_id, frozenset())
    weight = group.weight(partitions) if group.weights else None
    return MemberShare(member_id, len(partitions), weight, by_topic(partitions))


def _spread(values: Sequence[int]) -> Spread:
    return Spread(min(values), max(values), round(pstdev(values), 2))


def outcome_text(outcome: StrategyResult, names: Names) -> VisibleText:
    """Return the strategy's name, a line per member, and the remarks about all members."""
    return visible_text([outcome.strategy, _members(outcome, names), *_remarks(outcome)])


def summary_text(outcomes: Sequence[StrategyResult]) -> VisibleText:
    """Return a line per strategy."""
    headings = ["STRATEGY", "LEAST", "MOST", "STDDEV"]
    has_weights = any(outcome.weight_spread for outcome in outcomes)
    headings += ["LEAST-WEIGHT", "MOST-WEIGHT"] if has_weights else []
    has_moves = any(outcome.moves for outcome in outcomes)
    headings += ["NOBODYS", *(["MOVED", "NEEDLESSLY", "ROUNDS"] if has_moves else [])]
    rows = [_summary_row(outcome, has_weights=has_weights)[: len(headings)] for outcome in outcomes]
    return render_table([Column(heading, 0) for heading in headings], rows)


def _members(outcome: StrategyResult, names: Names) -> VisibleText:
    moves = {} if outcome.moves is None else {m.member_id: m for m in outcome.moves.members}
    headings = ["MEMBER", "#PARTITIONS"]
    headings += ["WEIGHT"] if outcome.weight_spread else []
    headings += ["GAINS", "LOSES"] if moves else []
    rows = []
    for share in outcome.shares:
        row: list[object] = [names.of(share.member_id), share.partitions]
        row += [share.weight] if outcome.weight_spread else []
        if moves:
            changes = moves[share.member_id]
            row += [_count(changes.gained), _count(changes.lost)]
        rows.append([*row, _listed(share.assignment) or None])
    return render_table([Column(heading, 0) for heading in [*headings, "ASSIGNMENT"]], rows)


def _remarks(outcome: StrategyResult) -> Iterator[str]:
    yield f"spread: {_spread_text(outcome.spread)} partitions per member"
    if outcome.weight_spread is not None:
        yield f"weight: {_spread_text(outcome.weight_spread)} a member"
    if outcome.moves is not None:
        moves = outcome.moves
        yield f"moved: {moves.moved} of {moves.partitions} partitions, {moves.needless} needlessly"
    if outcome.rounds > 1:
        yield (
            f"rounds: {outcome.rounds}; the first revokes {outcome.handed_over} partitions, "
            "the second assigns them, all other partitions stay consumed"
        )
    if outcome.nobodys:
        yield f"no member consumes {_listed(outcome.nobodys)}"


def _spread_text(spread: Spread) -> str:
    return f"{spread.least} to {spread.most}, standard deviation {spread.stddev}"


def _summary_row(outcome: StrategyResult, *, has_weights: bool) -> list[object]:
    weights, moves = outcome.weight_spread, outcome.moves
    return [
        *(outcome.strategy, outcome.spread.least, outcome.spread.most, outcome.spread.stddev),
        *([weights and weights.least, weights and weights.most] if has_weights else []),
        _count(outcome.nobodys),
        *((None, None, None) if moves is None else (moves.moved, moves.needless, outcome.rounds)),
    ]


def _count(by_topic: ByTopic) -> int:
    return sum(map(len, by_topic.values()))


def _listed(by_topic: ByTopic) -> str:
    """Return partitions as text, such as `orders 0-3 7, prices 1`."""
    return ", ".join(f"{topic} {number_list(numbers)}" for topic, numbers in by_topic.items())
