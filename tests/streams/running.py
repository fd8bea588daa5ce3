"""The campaign of streams applications, of one seed, its table in docs/streams-faults.md, and its command
line.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from tests.campaigns.fault import Fault
from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, StruckFault, early_ends, fault_table
from tests.streams.judge import Violation
from tests.streams.kinds import ALL, KINDS, REFERENCE
from tests.streams.stage import ACTIVE, OUTPUT, StreamsStage
from tests.transactions import checker

TIMES: Mapping[str, Callable[[StruckFault], float]] = {
    f"{ACTIVE} after (s)": lambda it: it.measured[ACTIVE],
    f"{OUTPUT} after (s)": lambda it: it.measured[OUTPUT],
}


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
    faults = fault_table(results, KINDS, "coordinator", Violation, TIMES)
    return "\n\n".join([faults, *map(_judged, results)]) + early_ends(results)


def _judged(result: Result) -> str:
    """Return a sentence about the words of a seed."""
    ((name, wrongs),) = [it for it in result.wrongs.items() if it[0] in result.numbers] or [("", {})]
    counts = ", ".join(f"{wrongs.get(wrong.value, 0)} {wrong.value}" for wrong in checker.Violation)
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
