"""`group-coordinator consume`: one consumer in a group of the coordinator."""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
from kafka.errors import KafkaError

from assignors.kafka import ASSIGNORS
from assignors.kafka.server_side import COORDINATOR_ASSIGNORS
from cli.cluster_options import cluster_options
from cli.consumed import line_writer
from cli.logs import configure_logs
from cli.option_object import as_object
from cli.output import show
from cli.parameters import WholeNumber
from clients.consumer import ConsumerOptions, ConsumerStopped, GroupConsumer
from clients.coordinator_client import CoordinatorClient, layout_on
from clients.pending import ClientError
from connections import kafka_clients
from connections.client_config import ClientConfig
from records.layout import DEFAULT_PREFIX


@click.command()
@cluster_options()
@click.option("--group", "group_id", required=True, help="The group to join.")
@click.option("--topic", "topics", required=True, multiple=True, help="A topic to consume; repeatable.")
@click.option(
    "--instance-id", "group_instance_id", help="Join as a static member with this name (group.instance.id)."
)
@click.option(
    "--assignor",
    "assignors",
    default="range,roundrobin",
    show_default=True,
    callback=lambda _context, _option, value: _parse_assignors(value),
    help="Assignors to offer, best first; the coordinator runs those that begin with coordinator:.",
)
@click.option("--session-timeout-ms", type=WholeNumber(1), default=10_000, show_default=True)
@click.option("--rebalance-timeout-ms", type=WholeNumber(1), default=60_000, show_default=True)
@click.option("--heartbeat-interval-ms", type=WholeNumber(1), default=3_000, show_default=True)
@click.option(
    "--client-id", default="consumer", show_default=True, help="The client id; the member id begins with it."
)
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@click.option(
    "--consumed",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append a JSON line for each record to this file.",
)
@as_object(ConsumerOptions, "options")
def consume(
    client_config: ClientConfig, prefix: str, client_id: str, consumed: Path | None, options: ConsumerOptions
) -> None:
    """Consume topics as a member of a group, until Ctrl-C.

    This coordinator manages the group; the broker's own group coordinator is not used.
    """
    configure_logs()
    with ExitStack() as stack:
        try:
            layout = layout_on(client_config, prefix)
            client = stack.enter_context(CoordinatorClient(client_config, layout, client_id=client_id))
        except (ClientError, KafkaError) as error:
            raise click.ClickException(str(error)) from error
        consumer = kafka_clients.working_consumer(client_config, client_id)
        stack.callback(consumer.close, autocommit=False)
        process = line_writer(stack, consumed)
        _run(GroupConsumer(options, client, consumer, process, _printer(client_id)))


def _run(consumer: GroupConsumer) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: consumer.stop(f"stopped by {signal.Signals(got).name}"))
    try:
        consumer.run()
    except (ConsumerStopped, ClientError) as error:
        raise click.ClickException(f"the consumer cannot go on: {error}") from error


def _parse_assignors(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    known = [*ASSIGNORS, *COORDINATOR_ASSIGNORS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def _printer(client_id: str) -> Callable[[str], None]:
    return lambda line: show(f"{client_id}: {line}")
