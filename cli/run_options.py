"""The options of `run`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from cli.coordinator_parameters import (
    CHECKPOINT_LOCATION,
    SHARDS,
    SPARK_OPTIONS,
    checked_pairs,
    parse_broker_settings,
    series_options,
)
from cli.gateway_options import ListenerOptions, gateway_options
from cli.rocketmq_options import RocketmqListenerOptions, rocketmq_options
from cli.run_gateway import EMBEDDED, ROCKETMQ_CLUSTER, ClusterToServe
from kafka_why.cli.parameters import (
    HOST,
    WholeNumber,
    as_object,
    cluster_options,
    shared_fields,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import (
    CREATED_TOPIC_BYTES,
    DEFAULT_PREFIX,
    DEFAULT_REPLY_PARTITIONS,
    DEFAULT_REQUEST_PARTITIONS,
    LEAST_RESPONSES_TOPIC_BYTES,
    MOST_TOPIC_BYTES,
    TopicLayout,
    size_limits,
)
from kafka_why.local_files import DEFAULT_DATA_DIR
from kafka_why.metrics.series import SeriesBounds
from state.config import CoordinatorConfig
from streaming.query.admission import DEFAULT_SHARDS
from streaming.query.session import LOOPBACK
from streaming.service.clock.ticker import DEFAULT_INTERVAL_MS
from streaming.service.starts import REPLICA_BATCH_INTERVAL_MS, CoordinatorSettings, Options
from streaming.service.topic_watch.watcher import DEFAULT_INTERVAL_MS as DEFAULT_TOPIC_INTERVAL_MS

NO_GATEWAY = "--no-gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(CoordinatorSettings):
    """The options of `run`, named as click passes them. `CoordinatorSettings` and `GatewayOptions`
    explain most of them.

    `prefix`, the numbers of partitions and `max_message_bytes` determine `layout`. The constructor
    raises UsageError.
    """

    client_config: ClientConfig | None  # None: an embedded broker with `broker_settings`
    broker_settings: tuple[str, ...]
    data_dir: Path
    prefix: str
    request_partitions: int
    reply_partitions: int
    max_message_bytes: int
    metrics_host: str
    metrics_port: int
    metrics_members: bool
    series: SeriesBounds
    has_page: bool
    page_port: int
    listening: ListenerOptions
    no_gateway: bool
    rocketmq_cluster: ClusterToServe | None
    rocketmq: RocketmqListenerOptions
    as_json: bool

    def __post_init__(self) -> None:
        if self.standby and (self.checkpoint is None or self.client_config is None):
            raise click.UsageError(
                "--standby needs --checkpoint, and --bootstrap-servers or --client-config, "
                "that both machines reach"
            )
        _check_skipped_records(self.skip, self.layout)
        self.broker_config()

    @property
    def layout(self) -> TopicLayout:
        """The coordinator's topics."""
        return TopicLayout.named(
            self.prefix, request_partitions=self.request_partitions, reply_partitions=self.reply_partitions
        ).with_sizes(size_limits(self.max_message_bytes, self.max_message_bytes))

    def broker_config(self) -> Mapping[str, str]:
        """Return the settings of the embedded broker. Raises UsageError."""
        return parse_broker_settings(self.broker_settings, self.client_config)

    def coordinator_options(self, client_config: ClientConfig, folder: Path) -> Options:
        """Return the options of a coordinator on this cluster, with this folder."""
        return Options(client_config, folder, self.layout, **shared_fields(CoordinatorSettings, self))


def _check_skipped_records(skip: tuple[str, ...], layout: TopicLayout) -> None:
    """Raise BadParameter for an id of neither a record nor, with #NUMBER, a request in a packed record."""
    for record in skip:
        if not re.fullmatch(rf"{re.escape(layout.requests_topic)}-\d+-\d+(#\d+)?", record):
            raise click.BadParameter(
                f"{record!r} is not {layout.requests_topic}-PARTITION-OFFSET or "
                f"{layout.requests_topic}-PARTITION-OFFSET#NUMBER",
                param_hint="--skip-record",
            )


run_options = as_object(
    RunOptions,
    "options",
    cluster_options("An existing cluster; default: an embedded broker.", required=False),
    click.option(
        "--broker-config",
        "broker_settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of the embedded broker, such as auto.create.topics.enable=false; repeatable.",
    ),
    click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help="Folder of the checkpoint (and of the embedded broker's data).",
    ),
    click.option(
        "--checkpoint",
        type=CHECKPOINT_LOCATION,
        help="Path or URI of the checkpoint, such as hdfs://HOST/PATH or a folder that machines share; "
        "default: in the data folder.",
    ),
    click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the topics' names."),
    click.option(
        "--request-partitions", type=WholeNumber(1), default=DEFAULT_REQUEST_PARTITIONS, show_default=True
    ),
    click.option(
        "--reply-partitions", type=WholeNumber(1), default=DEFAULT_REPLY_PARTITIONS, show_default=True
    ),
    click.option(
        "--max-message-bytes",
        type=WholeNumber(LEAST_RESPONSES_TOPIC_BYTES, MOST_TOPIC_BYTES),
        default=CREATED_TOPIC_BYTES,
        show_default=True,
        help="max.message.bytes of new topics of requests and responses. Existing topics keep theirs. A "
        "JoinGroup or SyncGroup may be three quarters as large.",
    ),
    click.option(
        "--replication-factor",
        type=WholeNumber(1),
        help="Replicas of new topics; default: 3, or as many as there are brokers.",
    ),
    click.option(
        "--min-insync-replicas",
        type=WholeNumber(1),
        help="Replicas of new topics that must have a record before it counts; default: 2 of 3, else 1.",
    ),
    click.option(
        "--shards",
        type=SHARDS,
        help="Shards of each partition of requests, a power of two. A new checkpoint pins it. "
        f"[default: {DEFAULT_SHARDS}]",
    ),
    click.option(
        "-c",
        "--config",
        "settings",
        multiple=True,
        callback=lambda _, __, value: checked_pairs(value, "-c", CoordinatorConfig().with_settings),
        metavar="NAME=VALUE",
        help="A setting by Kafka's name; repeatable.",
    ),
    click.option("--tick-interval-ms", type=WholeNumber(10), default=DEFAULT_INTERVAL_MS, show_default=True),
    click.option(
        "--topic-interval-ms",
        type=WholeNumber(100),
        default=DEFAULT_TOPIC_INTERVAL_MS,
        show_default=True,
        help="Interval of the check whether topics with offsets were deleted or created again.",
    ),
    click.option(
        "--replica/--no-replica",
        default=True,
        show_default=True,
        help="Answer requests within milliseconds, by a second process that follows the query's log.",
    ),
    click.option(
        "--batch-interval-ms",
        type=WholeNumber(0),
        help="Shortest interval of the query's batches, and so of views and history; default: "
        f"{REPLICA_BATCH_INTERVAL_MS} with a replica, else 0.",
    ),
    click.option(
        "--clock-lag-ms",
        type=WholeNumber(0),
        default=0,
        show_default=True,
        help="Maximum difference between brokers' clocks.",
    ),
    click.option(
        "--skip-record",
        "skip",
        multiple=True,
        metavar="ID",
        help="Dead-letter this record unread; repeatable.",
    ),
    click.option(
        "--ui-host",
        type=HOST,
        default=LOOPBACK,
        show_default=True,
        help="Address the Spark UI listens on; everyone who reaches it can read everything it shows.",
    ),
    click.option(
        "--take-over-topics",
        is_flag=True,
        help="Make this folder the owner of topics whose own folder is lost. A new folder has none of their "
        "groups: members join again, and their committed offsets are lost.",
    ),
    click.option(
        "--standby",
        is_flag=True,
        help="Wait while another coordinator runs on this checkpoint, and take over when it ends. Needs "
        "--checkpoint, and --bootstrap-servers or --client-config.",
    ),
    click.option(
        "--ui-port",
        type=WholeNumber(0, 65_535),
        default=0,
        help="Port of the Spark UI; default: a free one.",
    ),
    click.option(
        "--metrics-host",
        type=HOST,
        default=LOOPBACK,
        show_default=True,
        help="Address the Prometheus metrics, /healthz and /readyz listen on.",
    ),
    click.option(
        "--metrics-port",
        type=WholeNumber(0, 65_535),
        default=0,
        help="Port of the metrics, /healthz and /readyz; default: a free one.",
    ),
    click.option(
        "--metrics-members/--no-metrics-members",
        default=False,
        show_default=True,
        help="Metrics of the lag of each member, too, with the member as a label.",
    ),
    series_options,
    click.option(
        "--page/--no-page",
        "has_page",
        default=True,
        show_default=True,
        help="Show in a browser on this machine which group is unwell, and why; `group-coordinator page` "
        "serves other machines.",
    ),
    click.option(
        "--page-port",
        type=WholeNumber(0, 65_535),
        default=0,
        help="Port of the page; default: a free one.",
    ),
    *SPARK_OPTIONS,
    gateway_options("--gateway", "--listen", default="127.0.0.1:0"),
    click.option(
        "--rocketmq",
        "rocketmq_cluster",
        type=ROCKETMQ_CLUSTER,
        metavar=f"HOST:PORT;...|{EMBEDDED}",
        help="Start a gateway for RocketMQ's clients, too: for the cluster of these name servers, or for an "
        f"{EMBEDDED} one, which is started here. The other options of RocketMQ need this one.",
    ),
    rocketmq_options("rocketmq-", listen="127.0.0.1:0"),
    click.option(NO_GATEWAY, "no_gateway", is_flag=True, help="Start no gateway; run `gateway` separately."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object when ready, show no live view."
    ),
)
"""The options of `run`. The command gets them as `options`."""
