"""The process of the page that `run` starts: it serves on a socket that it is given, until its input ends."""

import socket
import sys

import msgspec
from msgspec import Struct

from kafka_why.cli.output import configure_logs
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.page.server import Page


class PageStart(Struct, frozen=True, kw_only=True):
    """The instructions of the process, as a line of JSON. `listening` is the file descriptor of the
    socket.
    """

    client_config: ClientConfig
    layout: TopicLayout
    listening: int
    connect_to: str
    metrics_url: str
    watches_broker: bool


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
            watches_broker=start.watches_broker,
        ),
    ):
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
