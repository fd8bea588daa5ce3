"""The options of `run`: they reach the coordinator whole, and what cannot go together is refused."""

from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.cluster_options import client_config_of
from cli.gateway_options import Listening
from cli.option_object import as_object, pop_fields
from cli.run import run
from cli.run_options import RunOptions
from cli.spark_options import SparkOptions
from connections.client_config import ClientConfig
from insight.metrics.series import SeriesBounds
from streaming.service.options import Options

# Where no option of `run` leads to: tests and measurements set these.
NOT_OF_RUN = {"rest_interval_ms", "first_request_wait_s"}
EACH = """
    --bootstrap-servers kafka:9092 --checkpoint /shared/checkpoint --prefix other --request-partitions 3
    --reply-partitions 5 --max-message-bytes 8000000 --replication-factor 2 --min-insync-replicas 2 --shards 8
    -c group.max.size=7 --tick-interval-ms 50 --topic-interval-ms 700 --no-replica --batch-interval-ms 20
    --clock-lag-ms 30 --skip-record other-requests-0-1 --ui-host 127.0.0.2 --ui-port 4041 --take-over-topics
    --standby --master spark://a:7077 --driver-host 10.0.0.1 --state-partitions 2 --spark-conf
    spark.executor.cores=2
"""


def told(*words: str) -> RunOptions:
    given = run.make_context("run", [*words]).params
    reached = client_config_of(given.pop("bootstrap_servers"), given.pop("properties"))
    parts = {
        "spark": pop_fields(SparkOptions, given),
        "listening": pop_fields(Listening, given),
        "series": pop_fields(SeriesBounds, given),
    }
    return pop_fields(RunOptions, {**given, **parts, "client_config": reached})


def test_each_option_reaches_the_coordinator() -> None:
    client_config, folder = ClientConfig("kafka:9092"), Path("folder")
    options = told(*EACH.split()).coordinator(client_config, folder)
    default = Options(client_config, folder)
    same = {it.name for it in fields(Options) if getattr(options, it.name) == getattr(default, it.name)}
    assert same == NOT_OF_RUN | {"client_config", "folder"}
    assert options.settings == {"group.max.size": "7"}
    assert options.layout.requests_topic == "other-requests"
    assert (options.layout.request_partitions, options.layout.reply_partitions) == (3, 5)
    assert options.layout.request_record_max_bytes == options.layout.response_record_max_bytes == 8_000_000
    assert (options.master, options.driver_host) == ("spark://a:7077", "10.0.0.1")


def test_without_options_the_coordinator_has_the_defaults() -> None:
    client_config, folder = ClientConfig("kafka:9092"), Path("folder")
    assert told().coordinator(client_config, folder) == Options(client_config, folder)


def test_the_choice_of_groups_with_metrics_of_their_own() -> None:
    assert told().series == SeriesBounds(groups=1_000, pattern=None)
    series = told("--metrics-groups", "7", "--metrics-group-pattern", "orders|billing.*").series
    assert (series.groups, bool(series.pattern.fullmatch("billing-1"))) == (7, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "--metrics-group-pattern (",
            "'(' is no regular expression of RE2: missing ): (; expected is one such as",
        ),
        ("--standby", "--standby needs --checkpoint, and --bootstrap-servers or --client-config"),
        ("--standby --checkpoint /shared", "--standby needs --checkpoint"),
        ("--skip-record groups-0-1", "'groups-0-1' is not group-coordinator-requests-PARTITION-OFFSET"),
        ("-c group.max.size=many", "Invalid value for -c: group.max.size must be a whole number"),
        ("--broker-config a=b --bootstrap-servers kafka:9092", "configures the embedded broker"),
    ],
)
def test_what_cannot_go_together_is_refused_before_anything_starts(
    words: str, why: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(run, [*words.split(), "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 2
    assert why in result.output
    assert not (tmp_path / "data").exists()


def test_a_command_gets_the_named_parameters_as_one_and_the_others_as_they_are() -> None:
    @click.command()
    @click.option("--master")
    @click.option("--driver-host")
    @click.option("--state-partitions", type=int)
    @click.option("--spark-conf", default="none")
    @click.option("--other")
    @as_object(SparkOptions, "spark")
    def command(spark: SparkOptions, other: str) -> None:
        click.echo(f"{spark.master} {spark.state_partitions} {other}")

    result = CliRunner().invoke(command, ["--master", "a", "--state-partitions", "3", "--other", "b"])
    assert result.output == "a 3 b\n"
