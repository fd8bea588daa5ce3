"""Options of `run` that say where Spark runs: in this process's JVM, or on a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from cli.coordinator_parameters import name_value_pairs
from kafka_why.cli.parameters import HOST, Command, WholeNumber, as_object, with_options
from streaming.query.spark_settings import (
    DEFAULT_STATE_PARTITIONS,
    SettingRefused,
    check_given,
    check_master,
)

_CONF = "--spark-conf"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Spark's master and settings. See `streaming.query.session.Session`."""

    master: str | None
    driver_host: str | None
    state_partitions: int | None
    spark_conf: Mapping[str, str]


STATE_PARTITIONS = click.option(
    "--state-partitions",
    type=WholeNumber(1, 1_000),
    help="Partitions of the state, which tasks process in parallel. A new checkpoint pins it. "
    f"[default: {DEFAULT_STATE_PARTITIONS}]",
)
SPARK_CONF = click.option(
    _CONF,
    "spark_conf",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _, __, value: _checked_conf(value),
    help="A setting of Spark; repeatable.",
)
_OPTIONS = (
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


def spark_options(command: Command) -> Command:
    """Add the options. The command gets them as `spark`."""
    return with_options(as_object(SparkOptions, "spark")(command), *_OPTIONS)


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
