"""The campaign of exactly-once applications, of one seed, its tables in docs/transactions.md, and its command
line.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from tests.campaigns.planted import STEPS
from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, by_fault, early_ends, markdown, median_and_most
from tests.transactions.applications import APPLICATIONS
from tests.transactions.checker import Violation
from tests.transactions.kinds import KINDS, REFERENCE
from tests.transactions.stage import STABLE_S, TransactionStage

_HEAD = (
    "application",
    "coordinator",
    "faults",
    "records",
    *(wrong.value for wrong in Violation),
    "recovery (s)",
    "stable after (s)",
)


def campaign(
    seed: int,
    faults: int,
    clients: Sequence[str],
    kinds: Sequence[str] = (),
    *,
    step: str = "steady",
    reference: bool = False,
) -> Result:
    """Play one seed."""
    side = "Kafka" if reference else "this project" if step == "steady" else f"with the bug {step!r}"
    names = kinds or (REFERENCE if reference else KINDS)
    build = partial(
        TransactionStage,
        seed=seed,
        applications=[APPLICATIONS[name] for name in clients],
        step=step,
        is_reference=reference,
    )
    return play(Result(seed=seed, side=side), build, faults, {name: KINDS[name] for name in names})


def table(results: Sequence[Result]) -> str:
    """Return a row for each application and coordinator, below them the seeds, and a row for each fault."""
    by_row: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        for name in result.wrongs or ["-"]:
            by_row[name, result.side].append(result)
    seeds = ", ".join(
        f"{it.seed} ({'+'.join(it.wrongs)}, {it.side}: {len(it.struck)} faults, {it.seconds / 60:.0f} min)"
        for it in results
    )
    faults = [
        (fault, side, str(len(struck)), median_and_most([it.recovery_s for it in struck]))
        for fault, side, struck, _ in by_fault(results, sorted(KINDS))
        if fault in KINDS
    ]
    of_applications = markdown(_HEAD, [_row(*row, of_row) for row, of_row in by_row.items()], texts=2)
    of_faults = markdown(("fault", "coordinator", "times", "recovery (s)"), faults, texts=2)
    return f"{of_applications}\n\nSeeds: {seeds}.\n\n{of_faults}{early_ends(results)}"


def _row(name: str, side: str, results: Sequence[Result]) -> tuple[str, ...]:
    times = [struck.recovery_s for result in results for struck in result.struck]
    return (
        name,
        side,
        str(len(times)),
        f"{sum(result.numbers.get(name, 0) for result in results):,.0f}",
        *(str(sum(it.wrongs.get(name, {}).get(wrong.value, 0) for it in results)) for wrong in Violation),
        median_and_most(times),
        f"{max(result.numbers.get(STABLE_S, 0.0) for result in results):.1f}",
    )


def _campaigns(seed: int, *, clients: Sequence[str], together: bool, **options: Any) -> Iterator[Result]:
    """Play a seed with each application, or with all of them."""
    for group in [clients] if together else [[client] for client in clients]:
        yield campaign(seed, clients=group, **options)


main = command(
    _campaigns,
    Result,
    table,
    Path("docs/transactions.md"),
    [
        *fault_options(KINDS, 200),
        click.Option(
            ["--client", "clients"],
            multiple=True,
            required=True,
            type=click.Choice([*APPLICATIONS]),
            help="An application; repeatable. Each of them plays each seed.",
        ),
        click.Option(["--together"], is_flag=True, help="All applications play a seed side by side."),
        click.Option(["--reference"], is_flag=True, help="With Kafka's own coordinator."),
        click.Option(["--step"], type=click.Choice([*STEPS]), default="steady", help="A planted bug."),
    ],
)
