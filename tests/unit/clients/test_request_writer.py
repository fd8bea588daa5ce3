"""The writer of requests, with librdkafka's producer and no broker. The broker: tests/e2e/test_client.py."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from msgspec.structs import replace

from clients.pending import FutureRequest, PendingRequests, RequestNotSent, RequestTooLarge, resolve_futures
from clients.request_writer import RequestWriter
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import PACK_MAX_BYTES
from tests.spark.log import heartbeat

NO_BROKER = "127.0.0.1:1"
TIMEOUT_MS = 2_000
PATIENCE_S = 30.0
MAX_BYTES = 2 * PACK_MAX_BYTES
FATAL = KafkaException(KafkaError(KafkaError._FATAL, "a gap in the sequence", True))


def asked(number: int, member_id: str = "m") -> FutureRequest:
    request = replace(heartbeat("g", member_id), correlation_id=str(number))
    return FutureRequest(request, 0.0, 60_000, resolve_futures, future=Future())


def producer(max_request_bytes: int = 100_000) -> Producer:
    return kafka_clients.request_producer(
        ClientConfig(NO_BROKER), timeout_ms=TIMEOUT_MS, max_request_bytes=max_request_bytes
    )


@pytest.fixture
def pending() -> PendingRequests:
    return PendingRequests("")


@pytest.fixture
def writer(pending: PendingRequests) -> Iterator[RequestWriter]:
    writer = RequestWriter(producer, "requests", 1, pending, "writer", MAX_BYTES)
    yield writer
    writer.close(0)


def write(writer: RequestWriter, pending: PendingRequests, *requests: FutureRequest) -> None:
    pending.add(requests)
    writer.write(requests)


def test_a_write_that_fails_fails_all_requests_of_its_record(
    writer: RequestWriter, pending: PendingRequests
) -> None:
    """And those that waited for it are written after it: here they fail, too."""
    requests = [asked(number) for number in range(5)]
    began_s = time.monotonic()
    for request in requests:
        write(writer, pending, request)
    assert time.monotonic() - began_s < TIMEOUT_MS / 1000, "no broker is waited for"
    ended: list[str] = []
    for request in requests:
        request.future.add_done_callback(
            lambda _, name=request.correlation_id: ended.append(name)  # type: ignore[misc]
        )
    for request in requests:
        with pytest.raises(RequestNotSent, match=r"Heartbeat for group 'g' could not be sent: .*timed out"):
            request.future.result(PATIENCE_S)
    assert ended == ["0", "1", "2", "3", "4"]


def test_request_refused_by_the_producer_delays_no_other(pending: PendingRequests) -> None:
    writer = RequestWriter(lambda: producer(1_000), "requests", 1, pending, "writer", MAX_BYTES)
    too_large, other = asked(0, "m" * (PACK_MAX_BYTES + 1)), asked(1)
    write(writer, pending, too_large, other)
    with pytest.raises(RequestNotSent, match="Message size too large"):
        too_large.future.result(0)
    assert not other.future.done(), "it is under way"
    writer.close(0)


def test_unwritable_request_fails_alone(writer: RequestWriter, pending: PendingRequests) -> None:
    odd, large, other = asked(0, "\ud800"), asked(1, "m" * MAX_BYTES), asked(2)
    write(writer, pending, odd, large, other)
    with pytest.raises(RequestNotSent, match="surrogates not allowed"):
        odd.future.result(0)
    with pytest.raises(RequestTooLarge, match=rf"has \d+ bytes, the limit .* is {MAX_BYTES}"):
        large.future.result(0)
    assert not other.future.done()


def test_a_producer_that_failed_for_good_is_replaced(pending: PendingRequests) -> None:
    class Failing(Producer):
        def produce(self, *_: Any, **__: Any) -> None:
            raise FATAL

    settings = {"bootstrap.servers": NO_BROKER, "log_level": 0}
    producers = iter([Failing(settings), producer()])
    writer = RequestWriter(lambda: next(producers), "requests", 1, pending, "writer", MAX_BYTES)
    request = asked(0)
    write(writer, pending, request)
    assert not request.future.done(), "the second producer has it"
    with pytest.raises(RequestNotSent, match="timed out"):
        request.future.result(PATIENCE_S)
    writer.close(0)
