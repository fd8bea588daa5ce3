"""When an outage ends: not before clients can be heard again, or members expire who had no chance to be."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pytest
from kafka import KafkaProducer

from checkpoints.checkpoint import Checkpoint
from clients.coordinator_client import layout_on
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from records.codec import clock_record, encode
from records.layout import TopicLayout
from state.kafka.history import EntryType, HistoryEntry
from state.kafka.requests import TopicMetadata
from streaming.service.outages.outage import FirstRequest
from streaming.service.topics import prepare_topics
from tests.e2e.gateway_clients import PythonMember, consume, produce, share
from tests.e2e.harness import create_topic, history_of, new_layout, wait_until
from tests.harness.ports import gateway_port
from tests.harness.run_command import Run, run
from tests.spark.log import marker

pytestmark = pytest.mark.e2e

SESSION_MS = 10_000
RECORDS = 40
SILENCE_MS = 300
A_WHILE_S = 0.5


@pytest.mark.timeout(600)
def test_nobody_expires_because_a_restart_took_longer_than_the_session(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The coordinator is killed, with the gateway in its process, and started again."""
    prefix, listen = f"test-{uuid4()}", f"127.0.0.1:{gateway_port()}"
    servers = ("--bootstrap-servers", broker.bootstrap_servers, "--prefix", prefix)
    settings = ("--gateway", listen, "-c", "group.initial.rebalance.delay.ms=0")
    arguments = ("--json", "--data-dir", str(tmp_path / "data"), *servers, *settings)
    group_id, topic = f"group-{uuid4()}", f"orders-{uuid4()}"
    create_topic(broker.client_config, topic, 4, {})
    with ExitStack() as stack:
        first = stack.enter_context(run(tmp_path, *arguments))
        first.ready()
        layout = layout_on(broker.client_config, prefix)
        members = [stack.enter_context(closing(member_at(listen, group_id, topic))) for _ in range(3)]
        share(*members)
        produce(broker.bootstrap_servers, topic, range(RECORDS))
        seen = consume(RECORDS, *members)  # and not committed: whoever joins anew reads it again
        first.process.kill()
        first.process.wait()

        again = stack.enter_context(run(tmp_path, *arguments))
        again.ready()
        outage = Checkpoint.at(tmp_path / "data" / "coordinator").record().outages[-1].outage
        assert outage.until_ms >= listening_ms(again)
        wait_until(lambda: time.time() * 1000 > outage.until_ms + 2 * SESSION_MS, "the end of two sessions")
        produce(broker.bootstrap_servers, topic, range(RECORDS, 2 * RECORDS))
        seen += consume(RECORDS, *members)
        wait_until(lambda: taken_over(broker, layout, group_id) is not None, "the takeover")
        history = history_of(broker.client_config, layout, group_id)
        told = f"{len(seen)} consumed of {2 * RECORDS}, {len(seen) - len(set(seen))} of them again"
        expired = [event.reason for event in history if event.type is EntryType.MEMBER_REMOVED]
        assert expired == [], told
        assert Counter(seen) == Counter(range(2 * RECORDS)), told


def member_at(gateway: str, group_id: str, topic: str) -> PythonMember:
    settings = {"reconnect_backoff_max_ms": 1_000}  # as Java's clients
    return PythonMember(gateway, group_id, topic, session_ms=SESSION_MS, settings=settings)


def taken_over(broker: EmbeddedBroker, layout: TopicLayout, group_id: str) -> HistoryEntry | None:
    history = history_of(broker.client_config, layout, group_id, settled=False)
    return next((event for event in history if event.type is EntryType.TAKEN_OVER), None)


def listening_ms(process: Run) -> float:
    """When its gateway began to listen, by its log: a look from outside may come late."""
    entries = [json.loads(line) for line in process.stderr.splitlines() if line.startswith("{")]
    first = next(entry for entry in entries if entry["event"] == "listening")
    return datetime.fromisoformat(first["timestamp"]).timestamp() * 1000


class Requests:
    """Appends to a requests topic of its own."""

    def __init__(self, client_config: ClientConfig) -> None:
        self.client_config = client_config
        self.layout = new_layout()
        prepare_topics(client_config, self.layout)
        self._producer = KafkaProducer(bootstrap_servers=str(client_config), acks="all")

    def append(self, key: bytes | None, value: bytes) -> int:
        """The offset after the record's."""
        sent = self._producer.send(self.layout.requests_topic, key=key, value=value, partition=0)
        return int(sent.get(timeout=30).offset) + 1

    def tick(self) -> int:
        return self.append(None, clock_record(0))

    def request(self) -> int:
        return self.append(b"group", b"{}")

    def first_since(self, end: int, silence_ms: int = SILENCE_MS) -> FirstRequest:
        return FirstRequest(self.client_config, self.layout, {0: end}, silence_ms)

    def close(self) -> None:
        self._producer.close()


@pytest.fixture
def requests(broker: EmbeddedBroker) -> Iterator[Requests]:
    with closing(Requests(broker.client_config)) as requests:
        yield requests


def silence() -> None:
    """Longer than what tells an outage from a coordinator's ordinary pauses."""
    over_s = time.monotonic() + 2 * SILENCE_MS / 1000
    wait_until(lambda: time.monotonic() > over_s, "a silence")


def comes(first: FirstRequest, timeout_s: float = A_WHILE_S) -> bool:
    with closing(first):
        return first.wait(timeout_s, lambda: False)


def test_request_the_last_coordinator_did_not_come_to_does_not_end_the_outage(requests: Requests) -> None:
    end = requests.tick()
    requests.request()
    requests.tick()
    requests.request()
    # On a busy machine a request may follow a clock record late.
    assert not comes(requests.first_since(end, silence_ms=60_000))


def test_clock_records_do_not_end_the_outage(requests: Requests) -> None:
    end = requests.tick()
    silence()
    first = requests.first_since(end)
    requests.tick()
    assert not comes(first)


def test_requests_of_the_coordinators_own_process_do_not_end_the_outage(requests: Requests) -> None:
    """The follower asks a group again before any client is back."""
    end = requests.tick()
    silence()
    first = requests.first_since(end)
    requests.append(b"group", encode(TopicMetadata(group_id="group", topics={"t": None})))
    requests.append(b"group", encode(marker("group")))
    assert not comes(first)


def test_request_of_the_outage_ends_it(requests: Requests) -> None:
    """Gateways were there all along."""
    end = requests.tick()
    silence()
    requests.request()
    assert comes(requests.first_since(end), timeout_s=30)


def test_request_that_comes_now_ends_the_outage(requests: Requests) -> None:
    end = requests.tick()
    first = requests.first_since(end)
    requests.request()
    assert comes(first, timeout_s=30)


def test_service_that_stops_waits_for_no_request(requests: Requests) -> None:
    with closing(requests.first_since(requests.tick())) as first:
        assert not first.wait(3_600, lambda: True)
