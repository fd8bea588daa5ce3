"""The campaign of share groups, of one seed, its table in docs/share-faults.md, and its command line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from tests.campaigns.fault import Fault
from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, StruckFault, fault_table
from tests.shared.judge import Violation
from tests.shared.kinds import ALL, AT_BROKERS, KINDS
from tests.shared.stage import BROKERS, COORDINATOR, OUTCOMES, PAUSE, PAUSE_S, STUCK, ShareStage


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
    times: Mapping[str, Callable[[StruckFault], float]] = {
        "goes on after (s)": lambda it: it.recovery_s,
        "longest pause (s)": lambda it: it.measured[PAUSE],
    }
    return "\n\n".join([fault_table(results, KINDS, "coordinator", Violation, times), *map(_judged, results)])


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
