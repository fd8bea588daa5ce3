"""`group-coordinator rocketmq-consumer`: one consumer that computes its share of queues as RocketMQ's do."""

import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from kafka.errors import KafkaError

from assignors.rocketmq.strategies import (
    NamePrefixResolver,
    StrategySettings,
    UnknownStrategy,
    strategy_named,
)
from cli.consumed import line_writer
from clients.coordinator_client import CoordinatorClient
from clients.rocketmq.api import ConsumerConfig
from clients.rocketmq.consumer import Inbox, PushConsumer
from clients.rocketmq.instance import Intervals
from kafka_why.cli.output import configure_logs, show
from kafka_why.cli.parameters import WholeNumber, cluster_options
from kafka_why.cli.signals import SIGNALS
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import DEFAULT_PREFIX
from kafka_why.contract.rocketmq.requests import ConsumeFromWhere, MessageModel
from kafka_why.topic_reader import ClientError, layout_on

FROM_WHERE = {
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


@click.command("rocketmq-consumer")
@cluster_options()
@click.option("--group", "group_id", required=True, help="The consumer group.")
@click.option("--topic", "topics", required=True, multiple=True, help="A topic to consume; repeatable.")
@click.option(
    "--client-id", help="The client id, which decides its share; default: host@pid#time, as RocketMQ's."
)
@click.option("--strategy", default="AVG", show_default=True, help="RocketMQ's name of the strategy.")
@click.option(
    "--model",
    type=click.Choice([model.value.lower() for model in MessageModel]),
    default="clustering",
    show_default=True,
)
@click.option("--orderly", is_flag=True, help="Lock each queue, so that only one client reads it.")
@click.option("--from", "from_where", type=click.Choice(list(FROM_WHERE)), default="last", show_default=True)
@click.option("--rebalance-interval-ms", type=WholeNumber(1), default=20_000, show_default=True)
@click.option("--heartbeat-interval-ms", type=WholeNumber(1), default=30_000, show_default=True)
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@click.option(
    "--local-offsets",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of a broadcasting consumer's offsets; default: they are kept in memory.",
)
@click.option(
    "--consumed",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append a JSON line for each record to this file.",
)
def rocketmq_consumer(
    client_config: ClientConfig,
    prefix: str,
    client_id: str | None,
    rebalance_interval_ms: int,
    heartbeat_interval_ms: int,
    local_offsets: Path | None,
    consumed: Path | None,
    **given: Any,
) -> None:
    """Consume topics as RocketMQ's push consumer does, until Ctrl-C."""
    configure_logs()
    client_id = client_id or own_client_id()
    config = _config(**given)
    intervals = Intervals(rebalance_ms=rebalance_interval_ms, heartbeat_ms=heartbeat_interval_ms)
    inbox = Inbox()
    with ExitStack() as stack:
        try:
            layout = layout_on(client_config, prefix)
            client = CoordinatorClient(client_config, layout, client_id=client_id, listener=inbox)
        except (ClientError, KafkaError) as error:
            raise click.ClickException(str(error)) from error
        stack.enter_context(client)
        consumer = kafka_clients.working_consumer(client_config, client_id, metadata_max_age_ms=30_000)
        stack.callback(consumer.close, autocommit=False)
        push_consumer = PushConsumer(
            config,
            client,
            inbox,
            consumer,
            line_writer(stack, consumed),
            lambda line: show(f"{client_id}: {line}"),
            intervals=intervals,
            local_offsets=local_offsets,
        )
        for number in SIGNALS:
            signal.signal(number, lambda got, _: push_consumer.stop(f"stopped by {signal.Signals(got).name}"))
        push_consumer.run()


def own_client_id() -> str:
    """Return a client id that differs for each process on any host, as RocketMQ's does since 4.9."""
    return f"{socket.gethostname()}@{os.getpid()}#{time.monotonic_ns()}"


def _config(
    *, group_id: str, topics: tuple[str, ...], strategy: str, model: str, orderly: bool, from_where: str
) -> ConsumerConfig:
    settings = StrategySettings(machine_room_resolver=NamePrefixResolver())
    try:
        chosen = strategy_named(strategy, settings)
    except UnknownStrategy as error:
        raise click.BadParameter(str(error), param_hint="--strategy") from error
    return ConsumerConfig(
        group_id,
        dict.fromkeys(topics, "*"),
        message_model=MessageModel(model.upper()),
        consume_from_where=FROM_WHERE[from_where],
        strategy=chosen,
        orderly=orderly,
    )
