"""`group-coordinator state`: reads, saves and moves the coordinator's state (docs/state.md)."""

import click

from cli.state.commands import backup, export_, import_, read, rollback


@click.group()
def state() -> None:
    """Read, save and move the coordinator's state."""


for command in (read, backup, rollback, export_, import_):
    state.add_command(command)
