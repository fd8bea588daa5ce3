"""`python -m tests.transactions --client librdkafka --seed 7 --faults 200`."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from tests.campaigns.command import command
from tests.campaigns.planted import STEPS
from tests.transactions.applications import APPLICATIONS
from tests.transactions.kinds import KINDS
from tests.transactions.running import campaign
from tests.transactions.stage import TransactionResult
from tests.transactions.table import DOCUMENT, table

OPTIONS = (
    click.Option(
        ["--client", "clients"],
        multiple=True,
        required=True,
        type=click.Choice(list(APPLICATIONS)),
        help="An application; repeatable. Each of them plays each seed.",
    ),
    click.Option(["--together"], is_flag=True, help="All applications play a seed side by side."),
    click.Option(["--reference"], is_flag=True, help="With Kafka's own coordinator."),
    click.Option(
        ["--step"], type=click.Choice(list(STEPS)), default="steady", help="A step with a planted bug."
    ),
    click.Option(["--brokers"], type=click.IntRange(1, 3), default=1, show_default=True),
)


def campaigns(
    seed: int, faults: int, *, clients: Sequence[str], together: bool, **options: Any
) -> Iterator[TransactionResult]:
    """Play a seed with each application, or with all of them."""
    for group in [clients] if together else [(client,) for client in clients]:
        yield campaign(seed, faults, group, **options)


if __name__ == "__main__":
    command(campaigns, TransactionResult, KINDS, table, DOCUMENT, faults=200, options=OPTIONS)()
