"""The end of an outage without a gateway in the coordinator's process: the first request of a client.

tests/slow/test_run.py has an outage that is longer than the sessions.
"""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import KafkaProducer

from embedded.broker import EmbeddedBroker
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import clock_record, encode
from kafka_why.contract.kafka.requests import TopicMetadata
from streaming.service.outages.outage import FirstRequest
from streaming.service.topics import prepare_topics
from tests.e2e.harness import new_layout, wait_until
from tests.spark.log import marker

pytestmark = pytest.mark.e2e

SILENCE_MS = 300
A_WHILE_S = 0.5


class Requests:
    """Appends to a requests topic of its own."""

    def __init__(self, client_config: ClientConfig) -> None:
        self.client_config = client_config
        self.layout = new_layout()
        prepare_topics(client_config, self.layout)
        self._producer = KafkaProducer(bootstrap_servers=str(client_config), acks="all")

    def append(self, key: bytes | None, value: bytes) -> int:
        """Return the offset after the record's."""
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
    """Wait longer than the silence by which an outage differs from a coordinator's ordinary pauses."""
    over_s = time.monotonic() + 2 * SILENCE_MS / 1000
    wait_until(lambda: time.monotonic() > over_s, "a silence")


def comes(first: FirstRequest, timeout_s: float = A_WHILE_S) -> bool:
    with closing(first):
        return first.wait(timeout_s, lambda: False)


def test_request_left_by_the_last_coordinator_does_not_end_the_outage(requests: Requests) -> None:
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
    """The transaction follower sends a request to a group before any client returns."""
    end = requests.tick()
    silence()
    first = requests.first_since(end)
    requests.append(b"group", encode(TopicMetadata(group_id="group", topics={"t": None})))
    requests.append(b"group", encode(marker("group")))
    assert not comes(first)


def test_request_written_during_the_outage_ends_it(requests: Requests) -> None:
    """Gateways ran all the time."""
    end = requests.tick()
    silence()
    requests.request()
    assert comes(requests.first_since(end), timeout_s=30)


def test_later_request_ends_the_outage(requests: Requests) -> None:
    end = requests.tick()
    first = requests.first_since(end)
    requests.request()
    assert comes(first, timeout_s=30)


def test_stopping_service_does_not_wait_for_a_request(requests: Requests) -> None:
    with closing(requests.first_since(requests.tick())) as first:
        assert not first.wait(3_600, lambda: True)
