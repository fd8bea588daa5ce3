"""`python -m tests.shared --seed 7 --faults 100`."""

import time
from pathlib import Path

import click

from tests.faults.campaign.results import RESULTS_OPTION, play
from tests.shared.kinds import KINDS
from tests.shared.running import Result, campaign
from tests.shared.stage import BROKERS, COORDINATOR
from tests.shared.table import DOCUMENT, table


@click.command()
@click.option("--seed", "seeds", type=int, multiple=True, help="A seed; repeatable. Default: 1.")
@click.option("--faults", type=click.IntRange(0), default=100, show_default=True, help="Faults of each seed.")
@click.option(
    "--share-groups",
    "by",
    type=click.Choice([COORDINATOR, BROKERS]),
    default=COORDINATOR,
    show_default=True,
    help="Who coordinates them: this project's coordinator, or Kafka's own.",
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only these; repeatable."
)
@click.option("--minutes", type=float, help="Begin no fault after this many minutes.")
@RESULTS_OPTION
@click.option("--write", is_flag=True, help=f"Write the table to {DOCUMENT}.")
def main(
    seeds: tuple[int, ...],
    faults: int,
    by: str,
    kinds: tuple[str, ...],
    minutes: float | None,
    results: Path | None,
    write: bool,
) -> None:
    """Break what share groups need, and judge. The exit code is 1 if anything is wrong."""
    until_s = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    played = (campaign(seed, faults, by=by, kinds=kinds, until_s=until_s) for seed in seeds or (1,))
    play(played, Result, results, say=_say, table=table, document=DOCUMENT if write else None)


def _say(result: Result) -> None:
    if not result.is_well:
        click.echo("\n".join([result.failure, *result.sentences]))
        click.echo(f"seed {result.seed} has failed; its folder is {result.folder}")


if __name__ == "__main__":
    main()
