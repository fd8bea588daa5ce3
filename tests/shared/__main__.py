"""`python -m tests.shared --seed 7 --faults 100`."""

import click

from tests.campaigns.command import command
from tests.shared.kinds import KINDS
from tests.shared.running import campaign
from tests.shared.stage import BROKERS, COORDINATOR, ShareResult
from tests.shared.table import DOCUMENT, table

SHARE_GROUPS = click.Option(
    ["--share-groups", "by"],
    type=click.Choice([COORDINATOR, BROKERS]),
    default=COORDINATOR,
    show_default=True,
    help="Who coordinates them: this project's coordinator, or Kafka's own.",
)

if __name__ == "__main__":
    command(
        lambda *seed, **options: [campaign(*seed, **options)],
        ShareResult,
        KINDS,
        table,
        DOCUMENT,
        options=[SHARE_GROUPS],
    )()
