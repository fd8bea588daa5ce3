"""Shared parts of commands that read a coordinator's data folder: the option, the folder's broker, the
errors.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from kafka.errors import KafkaError

from checkpoints.codec import StateError
from checkpoints.export_file import ExportError
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from kafka_why.connections.client_config import ClientConfig
from kafka_why.local_files import DEFAULT_DATA_DIR, FolderError

Command = TypeVar("Command", bound=Callable[..., Any])

_ERRORS = (BrokerFailed, ExportError, FolderError, JarsUnavailable, JavaNotFound, KafkaError, StateError)


def data_dir_option(note: str, *, exists: bool = True) -> Callable[[Command], Command]:
    """Add `--data-dir` of a coordinator. With `exists` the folder must exist even if the command does not use
    it.
    """
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
def reported_as(kind: type[click.ClickException], *others: type[Exception]) -> Iterator[None]:
    """Turn the errors of a data folder, and these others, into a sentence. `kind` has the exit code."""
    try:
        yield
    except (*_ERRORS, *others) as error:
        raise kind(str(error).partition("\n")[0] or type(error).__name__) from error
