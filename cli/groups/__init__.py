"""`group-coordinator groups`: the subcommands of `kafka-why groups`, which send their requests to the
coordinator here, and subcommands that change groups.
"""

import click

from cli.groups.change import (
    CoordinatorCluster,
    abort_pending,
    delete,
    delete_offsets,
    release,
    remove_members,
)
from cli.groups.reset import reset_offsets
from kafka_why.cli import groups as explainer


@click.group(cls=explainer.GroupCommands)
@click.pass_context
def groups(context: click.Context) -> None:
    """List, describe, reset, delete and release consumer groups."""
    context.obj = CoordinatorCluster


for _command in (
    *explainer.groups.commands.values(),
    reset_offsets,
    delete,
    delete_offsets,
    remove_members,
    release,
    abort_pending,
):
    groups.add_command(_command)
