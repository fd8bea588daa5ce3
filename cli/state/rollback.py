"""`group-coordinator state rollback`: takes a stopped coordinator's checkpoint back to an earlier batch."""

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from checkpoints.checkpoint import Checkpoint
from cli.data_folder import cluster, data_dir_option
from cli.state.common import PLACE_OPTION, coordinator_folder, reported, servers_option, spark_session
from kafka_why.cli.output import configure_logs, show
from kafka_why.cli.parameters import WholeNumber
from kafka_why.connections.client_config import ClientConfig
from kafka_why.service_folder import ServiceFolder
from streaming.query.storage import storage_at
from streaming.service.stored_state.rollback import RollbackRefused, roll_back


@click.command()
@click.option(
    "--to-batch",
    type=WholeNumber(0),
    help="The committed batch to go back to. Default: the newest intact one.",
)
@data_dir_option("Neither the coordinator nor a standby may run.")
@PLACE_OPTION
@servers_option("to find what was answered, if the plan of the last batch is damaged")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="New folder for the checkpoint as it was, on the same file system. Default: beside the checkpoint.",
)
def rollback(
    to_batch: int | None,
    data_dir: Path,
    place: str | None,
    client_config: ClientConfig | None,
    keep: Path | None,
) -> None:
    """Take a stopped coordinator's state back to an earlier batch.

    The requests since then run again as one batch, with the same answers.
    """
    configure_logs()
    with reported():
        folder = ServiceFolder(coordinator_folder(data_dir))
        path = storage_at(place or str(folder.path)).path
        if path is None:
            raise RollbackRefused(f"{place} has no path on this machine. Copy it into a folder, and back")
        with folder.locked() as lock:
            done = roll_back(
                Checkpoint.at(path),
                keep or path / f"rolled-back-{datetime.fromtimestamp(time.time(), UTC):%Y%m%dT%H%M%SZ}",
                lambda: spark_session(data_dir / "state.log", lock),
                to_batch=to_batch,
                cluster=lambda: cluster(data_dir, client_config),
            )
    show(f"{path} is back at batch {done.batch}, with {done.groups} groups")
    if done.last > done.batch:
        show(
            f"the next start handles the requests of batches {done.batch + 1} to {done.last} again, as batch "
            f"{done.batch + 1}"
        )
    show(f"the checkpoint as it was: {done.kept} ({done.removed} files are not used any more)")
