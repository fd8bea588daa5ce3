"""`group-coordinator groups`: the functions of kafka-consumer-groups, for groups of this coordinator.

Messages are Kafka's. They go to stderr, so that stdout has only the requested data. Exit codes are Kafka's: 1
for wrong usage, otherwise 0, even after an error about single groups. One difference: the exit code is 1 if
the command as a whole could not be carried out (no answer came, or a reset was refused).
"""

from typing import Any

import click

from cli.commands import Commands
from cli.groups.change import delete, delete_offsets, release, remove_members
from cli.groups.read import describe, list_
from cli.groups.reset import reset_offsets
from cli.groups.transactions import abort_pending

USAGE_EXIT_CODE = 1


class _Commands(Commands):
    """Exits with Kafka's exit code on wrong usage."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.show()
            ctx.exit(USAGE_EXIT_CODE)


@click.group(cls=_Commands)
def groups() -> None:
    """List, describe, reset, delete and release consumer groups."""


for _command in (
    list_,
    describe,
    reset_offsets,
    delete,
    delete_offsets,
    remove_members,
    release,
    abort_pending,
):
    groups.add_command(_command)
