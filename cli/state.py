"""`group-coordinator state`: moves the coordinator's state into a new folder (docs/operations.md)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from kafka.errors import KafkaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import StateError
from checkpoints.export_file import ExportError, ExportFile
from checkpoints.files import FolderError
from checkpoints.folder import Folder
from cli.logs import configure_logs
from cli.parameters import SERVERS, SHARDS
from cli.spark_options import STATE_PARTITIONS
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from embedded.paths import DEFAULT_DATA_DIR
from streaming.query.session import Session, SparkFailed
from streaming.service import moving

_ERRORS = (
    BrokerFailed,
    ExportError,
    FolderError,
    JarsUnavailable,
    JavaNotFound,
    KafkaError,
    moving.MoveRefused,
    PySparkException,
    SparkFailed,
    StateError,
)


@click.group()
def state() -> None:
    """Move the coordinator's state into a new folder."""


@state.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="The coordinator's data folder, as `run` has it. The coordinator must not run.",
)
@click.option(
    "--bootstrap-servers",
    type=SERVERS,
    help="The cluster with the coordinator's topics, to count the requests that are not handled yet. "
    "Default: the embedded broker, if the data folder has one.",
)
def export_(file: Path, data_dir: Path, bootstrap_servers: str | None) -> None:
    """Write the state of a coordinator that is stopped into a new FILE."""
    configure_logs()
    folder = Folder(data_dir / "coordinator")
    with _reported():
        if not folder.path.is_dir():
            raise moving.MoveRefused(f"{data_dir} has no folder of a coordinator")
        checkpoint = Checkpoint.at(folder.path)
        lock = folder.lock()
        try:
            with _broker(data_dir, bootstrap_servers) as servers:
                header = moving.header_of(checkpoint, servers)
            with _spark(folder.path / "spark.log", lock) as spark:
                groups = moving.export_state(checkpoint, spark, header, file)
        finally:
            folder.unlock()
    click.echo(f"exported {groups} groups to {file}")
    if header.unread is None:
        click.echo("requests that are not handled yet: not counted, no broker was given")
    else:
        click.echo(f"requests that are not handled yet: {_counts(header.unread)}")


@state.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data folder for `run`. It must not have the folder of a coordinator.",
)
@click.option("--shards", type=SHARDS, help="Shards of each partition of requests, a power of two.")
@STATE_PARTITIONS
@click.option("--request-partitions", type=click.IntRange(1), help="Partitions of requests; needs --prefix.")
@click.option("--prefix", help="Prefix of new topics. Every request of the old ones must have been handled.")
def import_(file: Path, data_dir: Path, **given: Any) -> None:
    """Make a coordinator's folder from an exported FILE."""
    configure_logs()
    target = data_dir / "coordinator"
    with _reported():
        export = ExportFile(file)
        identity = moving.identity_for(export.header, **given)
        moving.import_state(export, target, identity, lambda: _spark(data_dir / "import.log"))
    click.echo(
        f"imported {export.group_count} groups into {target}: {identity.request_partitions} partitions of "
        f"{identity.requests_topic}, {identity.shards} shards of each"
    )


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise click.ClickException(str(error).partition("\n")[0]) from error


@contextmanager
def _spark(log_path: Path, hold_fd: int | None = None) -> Iterator[SparkSession]:
    with Session(log_path=log_path, app_name="group-coordinator state", hold_fd=hold_fd) as session:
        yield session.spark


@contextmanager
def _broker(data_dir: Path, bootstrap_servers: str | None) -> Iterator[str | None]:
    """The cluster to ask: the given one, else the data folder's own broker, if it has one."""
    own = data_dir / "broker"
    if bootstrap_servers is not None or not own.is_dir():
        yield bootstrap_servers
        return
    with EmbeddedBroker(own) as broker:
        yield broker.bootstrap_servers


def _counts(unread: dict[int, int]) -> str:
    return ", ".join(f"{count} in partition {partition}" for partition, count in sorted(unread.items()))
