"""`python -m tests.transactions --client librdkafka --seed 7 --faults 200`."""

import time
from pathlib import Path

import click

from tests.faults.campaign.planted import STEPS
from tests.faults.campaign.results import RESULTS_OPTION, play
from tests.transactions.applications import APPLICATIONS
from tests.transactions.kinds import KINDS
from tests.transactions.running import Result, campaign
from tests.transactions.table import DOCUMENT, table


@click.command()
@click.option("--seed", "seeds", type=int, multiple=True, help="A seed; repeatable. Default: 1.")
@click.option("--faults", type=click.IntRange(0), default=200, show_default=True, help="Faults of each seed.")
@click.option(
    "--client",
    "clients",
    multiple=True,
    required=True,
    type=click.Choice(list(APPLICATIONS)),
    help="An application; repeatable. Each of them plays each seed.",
)
@click.option("--together", is_flag=True, help="All applications play a seed side by side.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only these; repeatable."
)
@click.option("--reference", is_flag=True, help="With Kafka's own coordinator.")
@click.option("--step", type=click.Choice(list(STEPS)), default="steady", help="A step with a planted bug.")
@click.option("--brokers", type=click.IntRange(1, 3), default=1, show_default=True)
@click.option("--minutes", type=float, help="Begin no fault after this many minutes.")
@RESULTS_OPTION
@click.option("--write", is_flag=True, help=f"Write the table to {DOCUMENT}.")
def main(
    seeds: tuple[int, ...],
    faults: int,
    clients: tuple[str, ...],
    together: bool,
    kinds: tuple[str, ...],
    reference: bool,
    step: str,
    brokers: int,
    minutes: float | None,
    results: Path | None,
    write: bool,
) -> None:
    """Break what applications with transactions need, and judge. The exit code is 1 if anything is wrong."""
    until_s = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    groups = [clients] if together else [(client,) for client in clients]
    played = (
        campaign(
            seed,
            faults,
            group,
            kinds=kinds,
            step=step,
            is_reference=reference,
            brokers=brokers,
            until_s=until_s,
        )
        for seed in seeds or (1,)
        for group in groups
    )
    play(played, Result, results, say=_say, table=table, document=DOCUMENT if write else None)


def _say(result: Result) -> None:
    sent = ", ".join(f"{number} records of {name}" for name, number in result.records.items())
    click.echo(f"seed {result.seed}: {len(result.struck)} faults, {sent}, {result.seconds:.0f} s")
    if not result.is_well:
        click.echo("\n".join([result.failure, *result.sentences]))
        click.echo(f"seed {result.seed} has failed; its folder is {result.folder}")


if __name__ == "__main__":
    main()
