"""The command line of a campaign of faults."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from tests.campaigns.playing import Kinds
from tests.campaigns.results import R, report

RESULTS = click.Option(
    ["--results"],
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append each campaign's result to this file, a line of JSON; the table is of the whole file.",
)


def write_option(document: Path) -> click.Option:
    """The option that writes the table to this document."""
    return click.Option(["--write"], is_flag=True, help=f"Write the table to {document}.")


def command(
    campaigns: Callable[..., Iterable[R]],
    kind: type[R],
    kinds: Kinds,
    table: Callable[[Sequence[R]], str],
    document: Path,
    *,
    faults: int = 100,
    options: Sequence[click.Option] = (),
) -> click.Command:
    """Return the command that plays `campaigns(seed, faults, kinds=, until_s=)` of each seed, and reports.

    `campaigns` gets the values of `options`, too.
    """

    def play(
        seeds: Sequence[int],
        faults: int,
        kinds: Sequence[str],
        minutes: float | None,
        results: Path | None,
        write: bool,
        **more: Any,
    ) -> None:
        until_s = float("inf") if minutes is None else time.monotonic() + 60 * minutes

        def played() -> Iterator[R]:
            for seed in seeds or (1,):
                yield from campaigns(seed, faults, kinds=kinds, until_s=until_s, **more)

        report(played(), kind, table, results=results, document=document if write else None)

    return click.Command(
        None,
        callback=play,
        help="Break what is under load, and judge. The exit code is 1 if anything is wrong.",
        params=[
            click.Option(["--seed", "seeds"], type=int, multiple=True, help="Repeatable. Default: 1."),
            click.Option(
                ["--faults"],
                type=click.IntRange(0),
                default=faults,
                show_default=True,
                help="Faults of each seed.",
            ),
            click.Option(
                ["--kind", "kinds"],
                multiple=True,
                type=click.Choice(list(kinds)),
                help="Only these; repeatable.",
            ),
            *options,
            click.Option(["--minutes"], type=float, help="Begin no fault after this many minutes."),
            RESULTS,
            write_option(document),
        ],
    )
