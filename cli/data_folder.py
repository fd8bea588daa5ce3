"""Shared parts of commands that read a coordinator's data folder: the option, the folder's broker, the
errors.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from kafka.errors import KafkaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import StateError
from checkpoints.sealed_file import ExportError
from cli.coordinator_parameters import PLACE, SPARK_CONF
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from kafka_why.cli.parameters import Command as AnyCommand
from kafka_why.cli.parameters import cluster_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.local_files import DEFAULT_DATA_DIR, FolderError
from streaming.query.jvm import SparkFailed
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session
from streaming.query.storage import storage_at
from streaming.service.stored_state.continuation import NotContinued
from streaming.service.stored_state.moving import MoveRefused, StateNotRead
from streaming.service.stored_state.rollback import RollbackRefused

Command = TypeVar("Command", bound=Callable[..., Any])

_ERRORS = (BrokerFailed, ExportError, FolderError, JarsUnavailable, JavaNotFound, KafkaError, StateError)


def data_dir_option(note: str, *, exists: bool = True) -> Callable[[Command], Command]:
    """Add `--data-dir` of a coordinator. With `exists`, the folder must exist even if it is not used."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=exists),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help=f"The coordinator's data folder, as `run` has it. {note}",
    )


@contextmanager
def cluster(data_dir: Path, client_config: ClientConfig | None) -> Iterator[ClientConfig | None]:
    """Yield the given cluster, or else the data folder's own broker, or None if it has none."""
    own = data_dir / "broker"
    if client_config is not None or not own.is_dir():
        yield client_config
        return
    with EmbeddedBroker(own) as broker:
        yield broker.client_config


@contextmanager
def reported(*others: type[Exception]) -> Iterator[None]:
    """Turn the errors of a data folder, and `others`, into a sentence and exit code 1."""
    try:
        yield
    except (*_ERRORS, *others) as error:
        raise click.ClickException(str(error).partition("\n")[0] or type(error).__name__) from error


STATE_ERRORS = (MoveRefused, NotContinued, PySparkException, RollbackRefused, SparkFailed, StateNotRead)


def place_options(command: Command) -> Command:
    """Add Spark's settings, and `--checkpoint` for one that is not in the data folder."""
    return SPARK_CONF(PLACE_OPTION(command))


PLACE_OPTION = click.option(
    "--checkpoint",
    "place",
    type=PLACE,
    help="Path or URI of the checkpoint, as `run` has it. Default: in the data folder.",
)


def servers_option(purpose: str) -> Callable[[AnyCommand], AnyCommand]:
    """Add `--bootstrap-servers` of the coordinator's cluster."""
    return cluster_options(
        f"The cluster with the coordinator's topics, {purpose}. "
        "Default: the embedded broker, if the data folder has one.",
        required=False,
    )


def coordinator_folder(data_dir: Path) -> Path:
    """Return the coordinator's folder in a data folder. Raises MoveRefused."""
    folder = data_dir / "coordinator"
    if not folder.is_dir():
        raise MoveRefused(f"{data_dir} has no folder of a coordinator")
    return folder


@contextmanager
def spark_session(log_path: Path, hold_fd: int | None = None) -> Iterator[SparkSession]:
    """Yield a Spark session of this command."""
    with Session(log_path=log_path, app_name="group-coordinator state", hold_fd=hold_fd) as session:
        yield session.spark


@contextmanager
def opened(
    data_dir: Path, place: str | None, spark_conf: Mapping[str, str]
) -> Iterator[tuple[Checkpoint, SparkSession]]:
    """Yield a coordinator's checkpoint and a Spark session that can read it. The checkpoint is not locked."""
    storage = storage_at(place or str(coordinator_folder(data_dir)))
    with Session(
        log_path=data_dir / "state.log",
        app_name="group-coordinator state",
        extra={CHECKPOINT_FILE_MANAGER: storage.file_manager, **spark_conf},
    ) as session:
        yield Checkpoint(storage.open(lambda: session.spark)), session.spark
