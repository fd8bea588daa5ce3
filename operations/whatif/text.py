"""The answer as text, with a column for each experiment, and as data for JSON."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from kafka_why.escaping import VisibleText, visible_text
from kafka_why.groups.tables import Column, render_table
from kafka_why.why.wording import Clock, columns, count, duration_text
from operations.whatif.answer import WhatIfAnswer
from operations.whatif.figures import RunFigures
from operations.whatif.validation import MatchKind, RebalancePair, Validation

_MAX_PAIRS = 40


class WhatIfSummary(Struct, frozen=True, kw_only=True):
    """The answer without its runs, for JSON. Times are milliseconds since the epoch."""

    group_id: str
    from_ms: int
    until_ms: int
    clients: list[str]
    ignored: dict[str, int]
    validation: Validation
    recorded: RunFigures
    tried: list[RunFigures]


def summary(found: WhatIfAnswer) -> WhatIfSummary:
    """Return the answer for JSON."""
    return WhatIfSummary(
        group_id=found.log.group_id,
        from_ms=found.log.rows[0].at_ms,
        until_ms=found.log.until_ms,
        clients=list(found.recorded.outcome.by_client),
        ignored=dict(found.fleet.ignored),
        validation=found.validation,
        recorded=found.recorded.outcome,
        tried=[measured.outcome for measured in found.tried],
    )


def answer_text(found: WhatIfAnswer, clock: Clock) -> VisibleText:
    """Return the heading, the validation, and the table; without the table if there are objections."""
    blocks = [visible_text(columns(_heading(found, clock)))]
    if found.validation.objections:
        blocks += [_pairs_text(found.validation.pairs, clock), _refusal(found.validation)]
    else:
        blocks.append(_table([found.recorded.outcome, *(measured.outcome for measured in found.tried)]))
    return visible_text(blocks, "\n\n")


def _heading(found: WhatIfAnswer, clock: Clock) -> Iterator[tuple[str, str]]:
    log, validation = found.log, found.validation
    times = f"{clock.time(log.rows[0].at_ms)} to {clock.time(log.until_ms)}"
    yield "Group", f"{log.group_id}, {times} {clock.zone(log.until_ms)}"
    clients, runs = len(found.recorded.outcome.by_client), len(found.fleet.processes)
    pauses = sum(len(process.pauses) for process in found.fleet.processes)
    paused = f", {count(pauses, 'pause')}" if pauses else ""
    yield "Clients", f"{clients}, started {count(runs, 'time')}{paused}"
    matched, all_ = validation.count(MatchKind.MATCHED), validation.recorded.rebalances
    yield (
        "Model",
        f"reproduces {matched} of {count(all_, 'rebalance')} within {duration_text(validation.worst_ms())}, "
        f"{validation.count(MatchKind.ADDITIONAL)} more; clients stood still for "
        f"{duration_text(validation.simulated.stood_still_ms)}, "
        f"really {duration_text(validation.recorded.stood_still_ms)}",
    )
    for reason, number in found.fleet.ignored.items():
        yield "Ignored", f"{count(number, 'request')} {reason}"
    for number, measured in enumerate(found.tried, 1):
        yield f"Try {number}", measured.outcome.name
        if measured.outcome.refused:
            yield "", f"the coordinator refuses {', '.join(measured.outcome.refused)}"


def _table(outcomes: Sequence[RunFigures]) -> VisibleText:
    kinds = list(dict.fromkeys(cause.kind for outcome in outcomes for cause in outcome.causes))
    rows: list[list[object]] = [["rebalances", *(outcome.rebalances for outcome in outcomes)]]
    rows += [[f"  {kind}", *(_of_kind(outcome, kind) for outcome in outcomes)] for kind in kinds]
    rows += [
        ["generations", *(outcome.generations for outcome in outcomes)],
        ["group not Stable", *(duration_text(outcome.not_stable_ms) for outcome in outcomes)],
        ["clients stood still", *(duration_text(outcome.stood_still_ms) for outcome in outcomes)],
    ]
    rows += [
        [f"  {client}", *(duration_text(o.by_client.get(client, 0)) for o in outcomes)]
        for client in outcomes[0].by_client
    ]
    rows += [
        ["partitions stood still", *(f"{o.partition_ms / 1000:.1f} partition-s" for o in outcomes)],
        ["  one, at the longest", *(duration_text(outcome.longest_ms) for outcome in outcomes)],
        ["partitions moved", *(outcome.moved for outcome in outcomes)],
        ["  needlessly", *(outcome.needless for outcome in outcomes)],
    ]
    names = [outcomes[0].name, *(f"try {number}" for number in range(1, len(outcomes)))]
    return render_table([Column("", 0), *(Column(name, 0) for name in names)], rows)


def _of_kind(outcome: RunFigures, kind: str) -> int:
    return sum(cause.rebalances for cause in outcome.causes if cause.kind == kind)


def _pairs_text(pairs: Sequence[RebalancePair], clock: Clock) -> VisibleText:
    rows = [
        [
            pair.match,
            clock.time(pair.began_ms),
            "-" if pair.off_ms is None else f"{pair.off_ms:+d} ms",
            f"{pair.cause}: {', '.join(pair.clients) or '-'}",
            len(pair.members),
        ]
        for pair in pairs[:_MAX_PAIRS]
    ]
    headings = ("REBALANCE", "BEGAN", "OFF", "CAUSE", "MEMBERS")
    hidden = len(pairs) - len(rows)
    more = [f"({hidden} more are not shown)"] if hidden else []
    return visible_text([render_table([Column(heading, 0) for heading in headings], rows), *more])


def _refusal(validation: Validation) -> VisibleText:
    lines = ["The model does not reproduce what happened, so a comparison would be worth nothing:"]
    return visible_text([*lines, *(f"- {objection}" for objection in validation.objections)])
