"""The first connection of kafka-python's clients."""

import select
import socket
from contextlib import ExitStack

import pytest
from kafka.errors import KafkaTimeoutError

from connections import kafka_clients
from connections.client_config import ClientConfig

HOST = "127.0.0.1"


def test_a_server_that_hangs_is_not_tried_again_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes connections for servers that answer nothing."""
    monkeypatch.setattr(kafka_clients, "FIRST_ATTEMPT_MS", 1_000)
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(2)]
        addresses = ",".join(f"{HOST}:{server.getsockname()[1]}" for server in servers)
        with pytest.raises(KafkaTimeoutError):
            kafka_clients.admin(ClientConfig(addresses), bootstrap_timeout_ms=2_500)
        tried, _, _ = select.select(servers, [], [], 0)
        assert tried == servers
