"""What the commands of `group-coordinator state` share: options, errors, Spark, the broker."""

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
from checkpoints.export_file import ExportError
from checkpoints.files import FolderError
from cli.parameters import PLACE, SERVERS
from cli.spark_options import SPARK_CONF
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from embedded.paths import DEFAULT_DATA_DIR
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session, SparkFailed
from streaming.query.storage import storage_at
from streaming.service.continuing import NotContinued
from streaming.service.moving import MoveRefused
from streaming.service.reading import StateNotRead
from streaming.service.rollback import RollbackRefused

Command = TypeVar("Command", bound=Callable[..., Any])

_ERRORS = (
    BrokerFailed,
    ExportError,
    FolderError,
    JarsUnavailable,
    JavaNotFound,
    KafkaError,
    MoveRefused,
    NotContinued,
    PySparkException,
    RollbackRefused,
    SparkFailed,
    StateError,
    StateNotRead,
)


def data_dir_option(note: str, *, exists: bool = True) -> Callable[[Command], Command]:
    """`--data-dir` of a coordinator. `exists`: also where the command does not use it, the folder must."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=exists),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help=f"The coordinator's data folder, as `run` has it. {note}",
    )


def place_options(command: Command) -> Command:
    """`--checkpoint` of a coordinator whose checkpoint is not in its data folder, and Spark's settings."""
    return SPARK_CONF(PLACE_OPTION(command))


PLACE_OPTION = click.option(
    "--checkpoint",
    "place",
    type=PLACE,
    help="Path or URI of the checkpoint, as `run` has it. Default: in the data folder.",
)


def servers_option(purpose: str) -> Callable[[Command], Command]:
    """`--bootstrap-servers` of the coordinator's cluster."""
    return click.option(
        "--bootstrap-servers",
        type=SERVERS,
        help=f"The cluster with the coordinator's topics, {purpose}. "
        "Default: the embedded broker, if the data folder has one.",
    )


def coordinator_folder(data_dir: Path) -> Path:
    """The coordinator's folder in a data folder. Raises MoveRefused if there is none."""
    folder = data_dir / "coordinator"
    if not folder.is_dir():
        raise MoveRefused(f"{data_dir} has no folder of a coordinator")
    return folder


@contextmanager
def reported(kind: type[click.ClickException] = click.ClickException) -> Iterator[None]:
    """Turn the errors that are expected into a sentence. `kind` has the exit code."""
    try:
        yield
    except _ERRORS as error:
        raise kind(str(error).partition("\n")[0]) from error


@contextmanager
def spark_session(log_path: Path, hold_fd: int | None = None) -> Iterator[SparkSession]:
    """A Spark of this command's own."""
    with Session(log_path=log_path, app_name="group-coordinator state", hold_fd=hold_fd) as session:
        yield session.spark


@contextmanager
def opened(
    data_dir: Path, place: str | None, spark_conf: Mapping[str, str]
) -> Iterator[tuple[Checkpoint, SparkSession]]:
    """A coordinator's checkpoint and a Spark that can read it, without a lock."""
    storage = storage_at(place or str(coordinator_folder(data_dir)))
    with Session(
        log_path=data_dir / "state.log",
        app_name="group-coordinator state",
        extra={CHECKPOINT_FILE_MANAGER: storage.file_manager, **spark_conf},
    ) as session:
        yield Checkpoint(storage.open(lambda: session.spark)), session.spark


@contextmanager
def cluster(data_dir: Path, bootstrap_servers: str | None) -> Iterator[str | None]:
    """The cluster to ask: the given one, else the data folder's own broker, if it has one."""
    own = data_dir / "broker"
    if bootstrap_servers is not None or not own.is_dir():
        yield bootstrap_servers
        return
    with EmbeddedBroker(own) as broker:
        yield broker.bootstrap_servers
