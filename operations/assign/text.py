"""Outcomes as tables: one per strategy, and one that compares all."""

from collections.abc import Iterator, Sequence

from kafka_why.assign.parsing import ByTopic
from kafka_why.escaping import VisibleText, visible_text
from kafka_why.groups.tables import Column, render_table
from kafka_why.partition_text import number_list
from kafka_why.why.wording import Names
from operations.assign.compare import Spread, StrategyResult


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
    yield f"spread: {_spread(outcome.spread)} partitions per member"
    if outcome.weight_spread is not None:
        yield f"weight: {_spread(outcome.weight_spread)} a member"
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


def _spread(spread: Spread) -> str:
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
