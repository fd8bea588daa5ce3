"""The options of `run`: they reach the coordinator whole, and what cannot be used is refused."""

import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from cli.gateway_options import Listening
from cli.rocketmq_options import RocketmqListening
from cli.run import run
from cli.run_options import RunOptions
from kafka_why.cli.parameters import client_config_of, pop_fields
from kafka_why.connections.client_config import ClientConfig
from kafka_why.metrics.series import SeriesBounds
from streaming.service.starts import Options

PEM = Path(__file__).parents[2] / "data" / "gateway.pem"


@pytest.fixture(autouse=True)
def keeps_signal_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ("-c nonsense", 2, "'nonsense' is not NAME=VALUE"),
        ("-c group.min.size=1", 2, "unknown setting 'group.min.size'; known are: coordinator."),
        (
            "-c group.max.size=many",
            2,
            "Invalid value for -c: group.max.size must be a whole number, not 'many'",
        ),
        ("-c group.max.size=0", 2, "group.max.size must be from 1 to 2147483647, not 0"),
        ("--tick-interval-ms 1", 2, "1 is not in the range x>=10"),
        ("--skip-record 12", 2, "'12' is not group-coordinator-requests-PARTITION-OFFSET"),
        ("--skip-record x-requests-0-1", 2, "'x-requests-0-1' is not group-coordinator-requests-"),
        (f"--data-dir {__file__}", 2, "is a file"),
        ("--nonsense", 2, "No such option"),
        ("--broker-config nonsense", 2, "'nonsense' is not NAME=VALUE"),
        ("--broker-config log.dirs=/tmp", 2, "log.dirs cannot be set: the embedded broker is one"),
        ("--broker-config a=b --bootstrap-servers a:1", 2, "--client-config names another"),
        ("--no-gateway --advertised-host a", 2, "cannot be combined with --advertised-host"),
        ("--no-gateway --gateway a:1", 2, "cannot be combined with --gateway"),
        ("--reply-partition 16", 2, "Invalid value for --reply-partition: 16 is not one of 0 to 15"),
        (f"--tls-key {PEM}", 1, "a TLS key needs its certificate"),
        (f"--tls-certificate {__file__}", 1, f"the TLS certificate {__file__} cannot be used"),
        ("--bootstrap-servers localhost:port", 2, "'localhost:port' is not HOST:PORT; expected is a list"),
        (
            "--metrics-group-pattern (",
            2,
            "'(' is not a regular expression of RE2: missing ): (; expected is one such as",
        ),
        ("--standby", 2, "--standby needs --checkpoint, and --bootstrap-servers or --client-config"),
        ("--standby --checkpoint /shared", 2, "--standby needs --checkpoint"),
        ("--master mesos://a:5050", 2, "'--master': 'mesos://a:5050' is not a master of Spark"),
        ("--spark-conf spark.speculation=true", 2, "'--spark-conf': spark.speculation cannot be changed"),
        ("--spark-conf spark.executor.memory", 2, "is not NAME=VALUE"),
        ("--state-partitions 0", 2, "'--state-partitions': 0 is not in the range"),
    ],
)
def test_invalid_run_arguments_are_reported_before_anything_starts(
    tmp_path: Path, arguments: str, exit_code: int, message: str
) -> None:
    outcome = CliRunner().invoke(main, ["run", "--data-dir", str(tmp_path / "data"), *arguments.split()])
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert exit_code == 1 or not (tmp_path / "data").exists()


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
        "listening": pop_fields(Listening, given),
        "rocketmq": pop_fields(RocketmqListening, given, "rocketmq_"),
        "series": pop_fields(SeriesBounds, given),
    }
    return pop_fields(RunOptions, {**given, **parts, "client_config": reached})


def test_run_options_reach_the_coordinator() -> None:
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
