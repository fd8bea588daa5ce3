"""The first connection of kafka-python's clients, and the number of log lines of an outage."""

import select
import socket
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.refusals import NoBroker
from kafka_why.lifetimes import OutageWarning

HOST = "127.0.0.1"


def test_error_tells_why_no_broker_answers() -> None:
    with socket.socket() as bound, socket.create_server((HOST, 0)) as hanging:
        bound.bind((HOST, 0))  # and nobody listens
        closed, silent = (f"{HOST}:{one.getsockname()[1]}" for one in (bound, hanging))
        for address, reason in (
            (closed, "Connection refused"),
            (silent, "it accepts connections, but does not answer"),
        ):
            with pytest.raises(NoBroker) as raised:
                kafka_clients.admin(ClientConfig(address), bootstrap_timeout_ms=400)
            assert str(raised.value) == f"no Kafka broker answers ({address}: {reason})"


def test_hanging_server_is_retried_only_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes connections for servers that answer nothing."""
    monkeypatch.setattr(kafka_clients, "FIRST_ATTEMPT_MS", 1_000)
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(2)]
        addresses = ",".join(f"{HOST}:{server.getsockname()[1]}" for server in servers)
        with pytest.raises(NoBroker):
            kafka_clients.admin(ClientConfig(addresses), bootstrap_timeout_ms=2_500)
        tried, _, _ = select.select(servers, [], [], 0)
        assert tried == servers


def test_two_minute_outage_logs_three_lines() -> None:
    now_s = 0.0
    warning = OutageWarning("reading", now_s=lambda: now_s)
    with capture_logs() as lines:
        warning.worked()
        while now_s < 120.0:
            warning.failed(ConnectionError("refused"))
            now_s += 1.0
            warning.worked()  # a poll that returns before the connection fails
            now_s += 0.5
        warning.worked()
        now_s += 10.0
        warning.worked()
        warning.worked()
    assert [(line["event"], line["attempts"]) for line in lines] == [
        ("reading failed, trying again", 1),
        ("reading failed, trying again", 41),
        ("reading works again", 80),
    ]
    assert lines[1]["for_s"] == 60.0
