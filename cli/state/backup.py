"""`group-coordinator state backup`: a copy of the state while the coordinator runs."""

from collections.abc import Mapping
from pathlib import Path

import click

from cli.data_folder import data_dir_option
from cli.state.common import opened, place_options, reported
from kafka_why.cli.output import configure_logs, show
from streaming.service.stored_state.backup import back_up


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@data_dir_option("The coordinator may run.")
@place_options
def backup(file: Path, data_dir: Path, place: str | None, spark_conf: Mapping[str, str]) -> None:
    """Write the state of the newest committed batch into a new FILE. `state import` reads it."""
    configure_logs()
    with reported(), opened(data_dir, place, spark_conf) as (checkpoint, spark):
        header, groups = back_up(checkpoint, spark, file)
    show(f"wrote {groups} groups, the state after batch {header.batch}, to {file}")
