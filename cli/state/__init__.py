"""`group-coordinator state`: reads, compares, saves and moves the coordinator's state (docs/state.md)."""

import click

from cli.state.commands import backup, diff, export_, import_, read, rollback


@click.group()
def state() -> None:
    """Read, compare, save and move the coordinator's state."""


for command in (read, diff, backup, rollback, export_, import_):
    state.add_command(command)
