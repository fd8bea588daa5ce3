"""`python -m tests.faults.campaign --seed 7 --faults 300`."""

import time
from pathlib import Path

import click

from tests.faults.campaign.kinds.all import KINDS
from tests.faults.campaign.kinds.retention import LOST_REQUESTS
from tests.faults.campaign.results import RESULTS_OPTION, play
from tests.faults.campaign.running import IDENTICAL, Result, campaign
from tests.faults.campaign.table import DOCUMENT, table


@click.command()
@click.option("--seed", "seeds", type=int, multiple=True, help="A seed; repeatable. Default: 1.")
@click.option("--faults", type=click.IntRange(1), default=100, show_default=True, help="Faults of each seed.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only these; repeatable."
)
@click.option("--cluster", is_flag=True, help="The coordinator's executors are on a Spark cluster.")
@click.option("--standby", is_flag=True, help="A second coordinator waits to take over.")
@click.option("--lost-requests", is_flag=True, help="Only the kinds that delete requests under load.")
@click.option("--minutes", type=float, help="Begin no fault after this many minutes.")
@RESULTS_OPTION
@click.option("--write", is_flag=True, help=f"Write the table to {DOCUMENT}.")
def main(
    seeds: tuple[int, ...],
    faults: int,
    kinds: tuple[str, ...],
    cluster: bool,
    standby: bool,
    lost_requests: bool,
    minutes: float | None,
    results: Path | None,
    write: bool,
) -> None:
    """Break the coordinator under load, and judge. The exit code is 1 if anything is wrong."""
    if lost_requests:
        kinds = (*kinds, *(fault.name for fault in LOST_REQUESTS))
    until_s = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    played = (
        campaign(seed, faults, kinds=kinds, on_cluster=cluster, with_standby=standby, until_s=until_s)
        for seed in seeds or (1,)
    )
    play(played, Result, results, say=_say, table=table, document=DOCUMENT if write else None)


def _say(result: Result) -> None:
    click.echo(
        f"seed {result.seed}: {len(result.struck)} faults, {result.requests} requests, "
        f"{result.transactions} transactions committed, "
        f"{result.assignments} assignments by the consumer protocol, {result.seconds:.0f} s"
    )
    if not result.is_well:
        replayed = [] if result.replay == IDENTICAL else [result.replay]
        click.echo("\n".join([result.failure, *result.sentences[:50], *replayed]))
        click.echo(f"seed {result.seed} has failed; its folder is {result.folder}")


if __name__ == "__main__":
    main()
