"""The campaign of streams applications, of one seed, its table in docs/streams-faults.md, and its command
line.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import click

from tests.campaigns.fault import Fault
from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, by_fault, early_ends, markdown, median_and_most
from tests.streams.judge import Wrong
from tests.streams.kinds import ALL, KINDS, REFERENCE
from tests.streams.stage import ACTIVE, OUTPUT, StreamsStage
from tests.transactions import checker

TIMES = (ACTIVE, OUTPUT)
_HEAD = (
    "fault",
    "coordinator",
    "times",
    *(wrong.value for wrong in Wrong),
    *(f"{it} after (s)" for it in TIMES),
)


def campaign(
    seed: int,
    faults: int,
    kinds: Sequence[str] = (),
    *,
    reference: bool = False,
    last: Iterable[Fault] = (),
) -> Result:
    """Play one seed. The faults of `last` come after those of the seed."""
    side = "Kafka" if reference else "this project"
    names = kinds or (REFERENCE if reference else ALL)
    build = partial(StreamsStage, seed=seed, is_reference=reference)
    return play(Result(seed=seed, side=side), build, faults, {name: KINDS[name] for name in names}, last)


def table(results: Sequence[Result]) -> str:
    """Return a row for each fault and coordinator, and below them the words of each seed."""
    rows = []
    for fault, side, struck, wrongs in by_fault(results, KINDS):
        counts = [str(wrongs[wrong.value]) for wrong in Wrong]
        times = [median_and_most([it.measured[name] for it in struck]) for name in TIMES]
        rows.append((fault, side, str(len(struck)), *counts, *times))
    return "\n\n".join([markdown(_HEAD, rows, texts=2), *map(_judged, results)]) + early_ends(results)


def _judged(result: Result) -> str:
    """Return a sentence about the words of a seed."""
    ((name, wrongs),) = [it for it in result.wrongs.items() if it[0] in result.numbers] or [("", {})]
    counts = ", ".join(f"{wrongs.get(wrong.value, 0)} {wrong.value}" for wrong in checker.Wrong)
    return (
        f"Seed {result.seed}, {result.side}: {len(result.struck)} faults in {result.seconds / 60:.0f} min, "
        f"{result.numbers.get(name, 0):,.0f} words, of which {counts}."
    )


main = command(
    lambda *seed, **options: [campaign(*seed, **options)],
    Result,
    table,
    Path("docs/streams-faults.md"),
    [
        *fault_options(KINDS),
        click.Option(["--reference"], is_flag=True, help="With Kafka's own coordinator."),
    ],
)
