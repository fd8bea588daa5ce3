"""The campaign of share groups, of one seed, its table in docs/share-faults.md, and its command line."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import click

from tests.campaigns.fault import Fault
from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, by_fault, markdown, median_and_most
from tests.shared.judge import Wrong
from tests.shared.kinds import ALL, AT_BROKERS, KINDS
from tests.shared.stage import BROKERS, COORDINATOR, OUTCOMES, PAUSE, PAUSE_S, STUCK, ShareStage

_HEAD = (
    "fault",
    "coordinator",
    "times",
    *(wrong.value for wrong in Wrong),
    "goes on after (s)",
    "longest pause (s)",
)


def campaign(
    seed: int,
    faults: int,
    kinds: Sequence[str] = (),
    *,
    by: str = COORDINATOR,
    last: Iterable[Fault] = (),
    pause_s: float = PAUSE_S,
    is_sample: bool = False,
) -> Result:
    """Play one seed. `by` is the kind of coordinator. The faults of `last` come after those of the seed. For
    `pause_s` and `is_sample` see `ShareStage`.
    """
    names = kinds or (ALL if by == COORDINATOR else AT_BROKERS)
    build = partial(ShareStage, seed=seed, by=by, pause_s=pause_s, is_sample=is_sample)
    return play(Result(seed=seed, side=by), build, faults, {name: KINDS[name] for name in names}, last)


def table(results: Sequence[Result]) -> str:
    """Return a row for each fault and coordinator, and below them what was judged."""
    rows = []
    for fault, by, struck, wrongs in by_fault(results, KINDS):
        times = ([it.recovery_s for it in struck], [it.measured[PAUSE] for it in struck])
        counts = [str(wrongs[wrong.value]) for wrong in Wrong]
        rows.append((fault, by, str(len(struck)), *counts, *map(median_and_most, times)))
    return "\n\n".join([markdown(_HEAD, rows, texts=2), *map(_judged, results)])


def _judged(result: Result) -> str:
    numbers = {name: f"{number:,.0f}" for name, number in result.numbers.items()}
    done = ", ".join(f"{numbers[kind]} {kind}" for kind in OUTCOMES if kind in numbers)
    records, deliveries, states, stuck = (
        numbers.get(name, "0") for name in ("records", "deliveries", "states", STUCK)
    )
    failure = f" It ended early: {result.failure}" if result.failure else ""
    return (
        f"Seed {result.seed}, `{result.side}`: {len(result.struck)} faults in {result.seconds / 60:.0f} min, "
        f"{records} records, {deliveries} deliveries, acknowledgements {done}; "
        f"{states} states; {stuck} consumers were stuck after a renewal.{failure}"
    )


main = command(
    lambda *seed, **options: [campaign(*seed, **options)],
    Result,
    table,
    Path("docs/share-faults.md"),
    [
        *fault_options(KINDS),
        click.Option(
            ["--share-groups", "by"],
            type=click.Choice([COORDINATOR, BROKERS]),
            default=COORDINATOR,
            show_default=True,
            help="Who coordinates them: this project's coordinator, or Kafka's own.",
        ),
    ],
)
