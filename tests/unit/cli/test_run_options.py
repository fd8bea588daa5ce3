"""The options of `run`: they reach the coordinator whole, and what cannot go together is refused."""

from dataclasses import fields
from pathlib import Path

from cli.gateway_options import Listening
from cli.rocketmq_options import RocketmqListening
from cli.run import run
from cli.run_options import RunOptions
from cli.spark_options import SparkOptions
from kafka_why.cli.parameters import client_config_of, pop_fields
from kafka_why.connections.client_config import ClientConfig
from kafka_why.metrics.series import SeriesBounds
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
        "rocketmq": pop_fields(RocketmqListening, given),
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
