"""`group-coordinator rocketmq-gateway`: RocketMQ's remoting protocol in front of a cluster and a coordinator
that run elsewhere.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import click
from kafka.errors import KafkaError

from cli.gateway import gateway_http_port, metrics_options
from cli.rocketmq_options import NAME_SERVERS, RocketmqListening, rocketmq_options
from gateway.metrics.collector import GatewayCollector
from gateway.rocketmq.metrics import ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX
from gateway.rocketmq.service import ROCKETMQ_CHECKS, ROCKETMQ_STARTUP_ERRORS, running_rocketmq
from gateway.running import RunningGateway
from kafka_why.cli.output import configure_logs, show, show_encoded
from kafka_why.cli.parameters import cluster_options
from kafka_why.cli.signals import StopEvent, exit_on_signals, stop_on_signals, watching_threads
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.layout import DEFAULT_PREFIX
from kafka_why.topic_reader import ClientError, layout_on
from kafka_why.web import WebUnavailable


@click.command()
@cluster_options()
@click.option(
    "--namesrv",
    type=NAME_SERVERS,
    required=True,
    metavar="HOST:PORT;...",
    help="Name servers of the RocketMQ cluster.",
)
@rocketmq_options(listen="127.0.0.1:9876")
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@metrics_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when ready.")
def rocketmq_gateway(
    client_config: ClientConfig,
    namesrv: tuple[str, ...],
    rocketmq: RocketmqListening,
    prefix: str,
    metrics_host: str,
    metrics_port: int,
    as_json: bool,
) -> None:
    """Serve unmodified RocketMQ clients (remoting protocol), until Ctrl-C.

    Requests about consumer groups go to the coordinator, all others to the cluster of the name servers. The
    coordinator's topics are on a Kafka cluster.
    """
    configure_logs()
    exit_on_signals()
    stop = StopEvent()
    try:
        with (
            watching_threads(stop.fail),
            _serving(rocketmq, rocketmq.servers(namesrv), client_config, prefix) as served,
            gateway_http_port(
                served,
                stop,
                metrics_host,
                metrics_port,
                collector=GatewayCollector(served.numbers, ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX),
                checks=ROCKETMQ_CHECKS,
            ) as http,
        ):
            stop_on_signals(stop)
            ready = {"gateway": str(served.address), "namesrv": ";".join(namesrv), "metrics": http.url}
            for_people = f"ready: clients take namesrvAddr={served.address}; metrics {http.url}"
            show_encoded(json.dumps(ready)) if as_json else show(for_people)
            stop.wait()
            if stop.failure is not None:
                raise click.ClickException(stop.failure)
            exit_on_signals()  # a second one ends it at once
            served.drain(rocketmq.rocketmq_drain_timeout_s)
    except (*ROCKETMQ_STARTUP_ERRORS, OSError, ValueError, WebUnavailable, ClientError, KafkaError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _serving(
    rocketmq: RocketmqListening, servers: RocketMqServers, client_config: ClientConfig, prefix: str
) -> Iterator[RunningGateway]:
    options = rocketmq.options(servers, client_config, layout_on(client_config, prefix))
    with running_rocketmq(options) as gateway:
        yield gateway
