"""`group-coordinator state export`: the state of a stopped coordinator as a file."""

from pathlib import Path

import click

from checkpoints.checkpoint import Checkpoint
from cli.data_folder import cluster, data_dir_option
from cli.state.common import coordinator_folder, reported, servers_option, spark_session
from kafka_why.cli.output import configure_logs, show
from kafka_why.connections.client_config import ClientConfig
from kafka_why.service_folder import ServiceFolder
from streaming.service.stored_state import moving


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@data_dir_option("The coordinator must not run.")
@servers_option("to count the requests that are not handled yet")
def export_(file: Path, data_dir: Path, client_config: ClientConfig | None) -> None:
    """Write the state of a coordinator that is stopped into a new FILE."""
    configure_logs()
    with reported():
        folder = ServiceFolder(coordinator_folder(data_dir))
        checkpoint = Checkpoint.at(folder.path)
        with folder.locked() as lock:
            with cluster(data_dir, client_config) as servers:
                header = moving.header_of(checkpoint, servers)
            with spark_session(folder.path / "spark.log", lock) as spark:
                groups = moving.export_state(checkpoint, spark, header, file)
    show(f"exported {groups} groups to {file}")
    if header.unread is None:
        show("requests that are not handled yet: not counted, no broker was given")
    else:
        counts = (f"{count} in partition {partition}" for partition, count in sorted(header.unread.items()))
        show(f"requests that are not handled yet: {', '.join(counts)}")
