"""`python -m tests.faults.campaign --seed 7 --faults 300`."""

import click

from tests.campaigns.command import command
from tests.faults.campaign.kinds.all import KINDS
from tests.faults.campaign.running import campaign
from tests.faults.campaign.stage import FaultResult
from tests.faults.campaign.table import DOCUMENT, table


def _flag(name: str, text: str) -> click.Option:
    return click.Option([name], is_flag=True, help=text)


if __name__ == "__main__":
    command(
        lambda *seed, **options: [campaign(*seed, **options)],
        FaultResult,
        KINDS,
        table,
        DOCUMENT,
        options=[
            _flag("--cluster", "The coordinator's executors are on a Spark cluster."),
            _flag("--standby", "A second coordinator waits to take over."),
            _flag("--lost-requests", "Only the kinds that delete requests under load."),
        ],
    )()
