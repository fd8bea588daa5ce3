"""`kafka-why groups`: the read-only functions of kafka-consumer-groups.

Messages are Kafka's. They go to stderr, so that stdout has only the requested data. Exit codes are Kafka's: 1
for wrong usage, otherwise 0, even after an error about single groups. One difference: the exit code is 1 if
the command as a whole could not be carried out (no answer came, or a reset was refused).
"""

from typing import Any

import click

from kafka_why.cli.groups.read import describe, list_
from kafka_why.cli.program import Commands

USAGE_EXIT_CODE = 1


class GroupCommands(Commands):
    """The group of subcommands, which exits with Kafka's exit code on wrong usage."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.show()
            ctx.exit(USAGE_EXIT_CODE)


@click.group(cls=GroupCommands)
def groups() -> None:
    """List and describe consumer groups, with their lag."""


groups.add_command(list_)
groups.add_command(describe)
