"""Options and shared parts of the commands that run a coordinator or read its data folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import re2
from kafka.errors import KafkaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import StateError
from checkpoints.sealed_file import ExportError
from embedded.broker import BrokerFailed, EmbeddedBroker, check_broker_settings
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from gateway.net.advertised import parse_templates
from gateway.net.first_bytes import parse_network
from kafka_why.cli.parameters import (
    HOST,
    Command,
    ParsedOption,
    WholeNumber,
    as_object,
    cluster_options,
    with_options,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.local_files import DEFAULT_DATA_DIR, FolderError
from kafka_why.metrics.series import DEFAULT_GROUPS, SeriesBounds
from records.topic_patterns import compiled, error_text
from state.config import CoordinatorConfig
from streaming.query.admission import parse_shards
from streaming.query.jvm import SparkFailed
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session
from streaming.query.spark_settings import (
    DEFAULT_STATE_PARTITIONS,
    SettingRefused,
    check_given,
    check_master,
)
from streaming.query.storage import storage_at
from streaming.service.stored_state.continuation import NotContinued
from streaming.service.stored_state.moving import MoveRefused, StateNotRead
from streaming.service.stored_state.rollback import RollbackRefused

LISTENERS = ParsedOption(
    "HOST:PORT,...",
    lambda text: parse_templates(text) if text else (),
    "an address for each gateway such as broker-{node}.example.org:9092 or gateway-1.example.org:{port}",
)
"""Parses to a tuple of `gateway.net.advertised.Template`."""


NETWORK = ParsedOption("NETWORK", parse_network, "one such as 10.0.0.5 or 10.0.1.0/24")
PROXIES_HELP = (
    "Load balancers whose connections begin with the client's address (PROXY protocol 1 or 2), such as "
    "10.0.0.5 or 10.0.1.0/24; repeatable. Others may not send it."
)

SHARDS = ParsedOption("NUMBER", parse_shards, "a power of two such as 64")
"""Parses to the number of shards of a partition."""


PLACE = ParsedOption(
    "PLACE", lambda place: storage_at(place).uri, "a path, or a URI such as hdfs://HOST:PORT/PATH"
)
"""Parses to a str: the path or URI of a checkpoint."""


def _pattern(text: str) -> Any:
    try:
        return compiled(text)
    except re2.error as error:
        raise ValueError(f"{text!r} is not a regular expression of RE2: {error_text(error)}") from error


PATTERN = ParsedOption("REGEX", _pattern, "one such as 'payments-.*'")
"""Parses to a compiled pattern of RE2."""

_SERIES_OPTIONS = (
    click.option(
        "--metrics-groups",
        "groups",
        type=WholeNumber(0),
        default=DEFAULT_GROUPS,
        show_default=True,
        help="Number of groups with their own metrics: the first ones seen. All others are added up.",
    ),
    click.option(
        "--metrics-group-pattern",
        "pattern",
        type=PATTERN,
        help="Groups whose whole id matches get their own metrics before all others.",
    ),
)


def series_options(command: Command) -> Command:
    """Add the options that select groups with metrics of their own. The command gets them as `series`."""
    return with_options(as_object(SeriesBounds, "series")(command), *_SERIES_OPTIONS)


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the coordinator's settings by Kafka's names. Raises BadParameter if one is invalid."""
    return checked_pairs(settings, "-c", CoordinatorConfig().with_settings)


def parse_broker_settings(settings: Sequence[str], client_config: ClientConfig | None) -> dict[str, str]:
    """Return the embedded broker's settings. Raises UsageError."""
    option = "--broker-config"
    if settings and client_config is not None:
        # There is no embedded broker.
        raise click.UsageError(
            f"{option} configures the embedded broker, but --bootstrap-servers or --client-config names "
            "another broker"
        )
    return checked_pairs(settings, option, check_broker_settings)


def checked_pairs(
    settings: Sequence[str], option: str, check: Callable[[dict[str, str]], object]
) -> dict[str, str]:
    """Return NAME=VALUE options by their names. Raises BadParameter if `check` raises a ValueError."""
    pairs = name_value_pairs(settings, option)
    try:
        check(pairs)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return pairs


def name_value_pairs(settings: Sequence[str], option: str) -> dict[str, str]:
    """Return the settings by their names. Raises BadParameter if one is not NAME=VALUE."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint=option)
        parsed[name.strip()] = value.strip()
    return parsed


_CONF = "--spark-conf"


STATE_PARTITIONS = click.option(
    "--state-partitions",
    type=WholeNumber(1, 1_000),
    help="Partitions of the state, which tasks process in parallel. A new checkpoint pins it. "
    f"[default: {DEFAULT_STATE_PARTITIONS}]",
)
SPARK_CONF = click.option(
    _CONF,
    "spark",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _, __, value: _checked_conf(value),
    help="A setting of Spark; repeatable.",
)
SPARK_OPTIONS = (
    click.option(
        "--master",
        callback=lambda _, __, value: _checked_master(value),
        help="Spark's master, such as spark://HOST:7077; default: local threads, one a core, or the master "
        "of spark-submit.",
    ),
    click.option(
        "--driver-host",
        type=HOST,
        help="Address at which executors reach this process; default: the one from which it reaches the "
        "master.",
    ),
    STATE_PARTITIONS,
    SPARK_CONF,
)


def _checked_master(master: str | None) -> str | None:
    if master is not None:
        try:
            check_master(master)
        except SettingRefused as error:
            raise click.BadParameter(str(error)) from error
    return master


def _checked_conf(given: Sequence[str]) -> dict[str, str]:
    conf = name_value_pairs(given, _CONF)
    try:
        check_given(conf)
    except SettingRefused as error:
        raise click.BadParameter(str(error)) from error
    return conf


# Shared parts of commands that read a coordinator's data folder: the option, the folder's broker, the errors.


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


def servers_option(purpose: str) -> Callable[[Command], Command]:
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
    data_dir: Path, place: str | None, spark: Mapping[str, str]
) -> Iterator[tuple[Checkpoint, SparkSession]]:
    """Yield a coordinator's checkpoint and a Spark session that can read it. The checkpoint is not locked."""
    storage = storage_at(place or str(coordinator_folder(data_dir)))
    with Session(
        log_path=data_dir / "state.log",
        app_name="group-coordinator state",
        extra={CHECKPOINT_FILE_MANAGER: storage.file_manager, **spark},
    ) as session:
        yield Checkpoint(storage.open(lambda: session.spark)), session.spark
