"""`group-coordinator state import`: a coordinator's folder from an exported file."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from checkpoints.checkpoint import Checkpoint
from checkpoints.export_file import ExportFile
from cli.coordinator_parameters import SHARDS
from cli.data_folder import cluster
from cli.spark_options import STATE_PARTITIONS
from cli.state.common import coordinator_folder, reported, servers_option, spark_session
from kafka_why.cli.output import configure_logs, show
from kafka_why.cli.parameters import WholeNumber
from kafka_why.connections.client_config import ClientConfig
from kafka_why.service_folder import ServiceFolder
from streaming.service.stored_state import moving
from streaming.service.stored_state.backup import continue_from


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data folder for `run`. It must not have the folder of a coordinator.",
)
@click.option("--shards", type=SHARDS, help="Shards of each partition of requests, a power of two.")
@STATE_PARTITIONS
@click.option("--request-partitions", type=WholeNumber(1), help="Partitions of requests; needs --prefix.")
@click.option("--prefix", help="Prefix of new topics. Every request of the old ones must have been handled.")
@click.option(
    "--old-data-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="For a backup: the data folder from which it was made. Its coordinator must not run. Requests "
    "that it has answered since then are handled again, with the same answers.",
)
@servers_option("to find what was answered, if the plan of the last batch in --old-data-dir is damaged")
def import_(
    file: Path, data_dir: Path, old_data_dir: Path | None, client_config: ClientConfig | None, **given: Any
) -> None:
    """Make a coordinator's folder from FILE, which `state export` or `state backup` wrote."""
    configure_logs()
    target = data_dir / "coordinator"
    with reported(), ExitStack() as held:
        export = ExportFile(file)
        follows, seen_ms = None, None
        if old_data_dir is not None:
            old = ServiceFolder(coordinator_folder(old_data_dir))
            held.enter_context(old.locked())
            ask = partial(cluster, old_data_dir, client_config)
            follows, seen_ms = continue_from(export.header, Checkpoint.at(old.path), ask)
        identity = moving.identity_for(export.header, continued_at_ms=seen_ms, **given)
        spark = partial(spark_session, data_dir / "import.log")
        moving.import_state(export, target, identity, spark, follows)
    show(
        f"imported {export.group_count} groups into {target}: {identity.request_partitions} partitions of "
        f"{identity.requests_topic}, {identity.shards} shards of each"
    )
