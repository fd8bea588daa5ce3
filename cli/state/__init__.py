"""`group-coordinator state`: reads, compares, saves and moves the coordinator's state (docs/state.md)."""

import click

from cli.state.backup import backup
from cli.state.diff import diff
from cli.state.export import export_
from cli.state.import_ import import_
from cli.state.read import read
from cli.state.rollback import rollback


@click.group()
def state() -> None:
    """Read, compare, save and move the coordinator's state."""


for command in (read, diff, backup, rollback, export_, import_):
    state.add_command(command)
