"""`group-coordinator groups`: what kafka-consumer-groups does, for groups of this coordinator.

Messages are Kafka's, and go to stderr, so that stdout has nothing but what was asked for. Exit codes are
Kafka's: 1 for wrong usage, else 0, also after an error about single groups; but where the command as a
whole could not be carried out (nobody answers, a reset was refused), it is 1.
"""

from typing import Any

import click

from cli.groups.change import delete, delete_offsets, remove_members
from cli.groups.read import describe, list_
from cli.groups.reset import reset_offsets

USAGE_EXIT_CODE = 1


class _Commands(click.Group):
    """Ends wrong usage with Kafka's exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.show()
            ctx.exit(USAGE_EXIT_CODE)


@click.group(cls=_Commands)
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


for _command in (list_, describe, reset_offsets, delete, delete_offsets, remove_members):
    groups.add_command(_command)
