"""The page's process, which `run` starts: it serves on an inherited socket until its standard input ends."""

import os
import socket
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from kafka_why.cli.output import configure_logs
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.layout import TopicLayout
from kafka_why.page.commands import CoordinatorLog
from kafka_why.page.server import Page


class PolledCluster(Struct, frozen=True):
    """A RocketMQ cluster that the page polls."""

    name_servers: tuple[str, ...]
    keys: str | None  # path of the file with the access and the secret key
    tls: str | None  # path of the file with the settings of TLS

    def servers(self) -> RocketMqServers:
        """Return the servers. Raises ValueError or OSError for unusable files."""
        keys, tls = (None if path is None else Path(path) for path in (self.keys, self.tls))
        return RocketMqServers.read(self.name_servers, keys, tls, os.environ)


class PageStart(Struct, frozen=True, kw_only=True):
    """The parameters of `Page`, which `run` writes as a line of JSON to the process's standard input."""

    client_config: ClientConfig
    layout: TopicLayout
    listening: int  # file descriptor of the socket
    connect_to: str
    metrics_url: str
    log: CoordinatorLog
    watches_broker: bool
    rocketmq: PolledCluster | None


def main() -> None:
    """Serve the page."""
    configure_logs()
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=PageStart)
    with (
        socket.socket(fileno=start.listening) as listening,
        Page(
            start.client_config,
            start.layout,
            listening,
            connect_to=start.connect_to,
            metrics_url=start.metrics_url,
            log=start.log,
            watches_broker=start.watches_broker,
            rocketmq=None if start.rocketmq is None else start.rocketmq.servers(),
        ),
    ):
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
