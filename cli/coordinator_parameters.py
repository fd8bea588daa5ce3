"""Options and shared parts of the commands that run a coordinator or read its data folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import re2
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from embedded.broker import EmbeddedBroker, check_broker_settings
from gateway.net.advertised import parse_templates
from gateway.net.first_bytes import parse_network
from kafka_why.cli.parameters import (
    HOST,
    Command,
    ParsedOption,
    WholeNumber,
    as_object,
    cluster_options,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.errors import UserFacingError
from kafka_why.local_files import DEFAULT_DATA_DIR
from kafka_why.metrics.series import DEFAULT_GROUPS, SeriesBounds
from records.topic_patterns import compiled, error_text
from streaming.query.admission import parse_shards
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session
from streaming.query.spark_settings import (
    DEFAULT_STATE_PARTITIONS,
    check_given,
    check_master,
)
from streaming.query.storage import storage_at

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


CHECKPOINT_LOCATION = ParsedOption(
    "PLACE", lambda place: storage_at(place).uri, "a path, or a URI such as hdfs://HOST:PORT/PATH"
)
"""Parses to a str: the path or URI of a checkpoint."""


def _parse_pattern(text: str) -> Any:
    try:
        return compiled(text)
    except re2.error as error:
        raise ValueError(f"{text!r} is not a regular expression of RE2: {error_text(error)}") from error


PATTERN = ParsedOption("REGEX", _parse_pattern, "one such as 'payments-.*'")
"""Parses to a compiled pattern of RE2."""

series_options = as_object(
    SeriesBounds,
    "series",
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
"""The options that select groups with metrics of their own. The command gets them as `series`."""


def parse_broker_settings(settings: Sequence[str], client_config: ClientConfig | None) -> dict[str, str]:
    """Return the embedded broker's settings by name.

    Raises UsageError if a setting is invalid, or if `client_config` names another broker.
    """
    option = "--broker-config"
    if settings and client_config is not None:
        raise click.UsageError(
            f"{option} configures the embedded broker, but --bootstrap-servers or --client-config names "
            "another broker"
        )
    return checked_pairs(settings, option, check_broker_settings)


def checked_pairs(
    settings: Sequence[str], option: str, check: Callable[[dict[str, str]], object]
) -> dict[str, str]:
    """Return the values of NAME=VALUE options by name.

    Raises BadParameter if one is not NAME=VALUE, or if `check` raises a ValueError.
    """
    pairs = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint=option)
        pairs[name.strip()] = value.strip()
    try:
        check(pairs)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return pairs


_SPARK_CONF_OPTION = "--spark-conf"


def _checked_master(text: str) -> str:
    check_master(text)
    return text


STATE_PARTITIONS = click.option(
    "--state-partitions",
    type=WholeNumber(1, 1_000),
    help="Partitions of the state, which tasks process in parallel. A new checkpoint pins it. "
    f"[default: {DEFAULT_STATE_PARTITIONS}]",
)
SPARK_CONF = click.option(
    _SPARK_CONF_OPTION,
    "spark",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _, __, value: checked_pairs(value, _SPARK_CONF_OPTION, check_given),
    help="A setting of Spark; repeatable.",
)
SPARK_OPTIONS = (
    click.option(
        "--master",
        type=ParsedOption("TEXT", _checked_master),
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


def data_dir_option(note: str, *, exists: bool = True) -> Callable[[Command], Command]:
    """Add `--data-dir` of a coordinator. With `exists`, click refuses a folder that is missing.

    A command that can run without the folder needs `exists=False`, because click checks the default too.
    """
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=exists),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help=f"The coordinator's data folder, as given to `run`. {note}",
    )


@contextmanager
def cluster_or_embedded(data_dir: Path, client_config: ClientConfig | None) -> Iterator[ClientConfig | None]:
    """Yield `client_config` if it is given. Otherwise run the data folder's embedded broker during the block,
    and yield its settings, or yield None if the folder has no embedded broker.
    """
    broker_dir = data_dir / "broker"
    if client_config is not None or not broker_dir.is_dir():
        yield client_config
        return
    with EmbeddedBroker(broker_dir) as broker:
        yield broker.client_config


def checkpoint_options(command: Command) -> Command:
    """Add Spark's settings, and `--checkpoint` for a checkpoint outside the data folder."""
    return SPARK_CONF(CHECKPOINT_OPTION(command))


CHECKPOINT_OPTION = click.option(
    "--checkpoint",
    "location",
    type=CHECKPOINT_LOCATION,
    help="Path or URI of the checkpoint, as given to `run`. Default: in the data folder.",
)


def servers_option(purpose: str) -> Callable[[Command], Command]:
    """Add `--bootstrap-servers` of the coordinator's cluster."""
    return cluster_options(
        f"The cluster with the coordinator's topics, {purpose}. "
        "Default: the embedded broker, if the data folder has one.",
        required=False,
    )


def coordinator_folder(data_dir: Path) -> Path:
    """Return the coordinator's folder in a data folder. Raises UserFacingError if it is missing."""
    folder = data_dir / "coordinator"
    if not folder.is_dir():
        raise UserFacingError(f"{data_dir} has no folder of a coordinator")
    return folder


@contextmanager
def spark_session(
    log_path: Path, hold_fd: int | None = None, extra: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session. Its JVM keeps `hold_fd`, the file descriptor of a lock, open until the JVM ends.

    An error of Spark ends the command with the first line of its message.
    """
    with Session(
        log_path=log_path, app_name="group-coordinator state", hold_fd=hold_fd, extra=extra
    ) as session:
        try:
            yield session.spark
        except PySparkException as error:
            raise click.ClickException(str(error).partition("\n")[0]) from error


@contextmanager
def open_checkpoint(
    data_dir: Path, location: str | None, spark: Mapping[str, str]
) -> Iterator[tuple[Checkpoint, SparkSession]]:
    """Yield a coordinator's checkpoint and a Spark session that can read it.

    The checkpoint is not locked, so the coordinator may run.
    """
    storage = storage_at(location or str(coordinator_folder(data_dir)))
    extra = {CHECKPOINT_FILE_MANAGER: storage.file_manager, **spark}
    with spark_session(data_dir / "state.log", extra=extra) as session:
        # Storage such as HDFS is read through Spark.
        yield Checkpoint(storage.open(lambda: session)), session
