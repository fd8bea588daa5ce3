"""The writer of requests, with librdkafka's producer and no broker. The broker: tests/e2e/test_client.py."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clients import request_writer
from clients.pending import (
    FutureRequest,
    PendingRequest,
    PendingRequests,
    RequestNotSent,
    RequestTooLarge,
    resolve_futures,
)
from clients.request_writer import Packer, PackSlot, RequestRecord, RequestWriter, pack_slot_of
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import PACK_MAX_BYTES, encode, slot_of, unpack
from kafka_why.partitioner import CACHED_MAX_CHARACTERS, partition_of
from tests.spark.log import heartbeat

NO_BROKER = "127.0.0.1:1"
TIMEOUT_MS = 2_000
PATIENCE_S = 60.0
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


def test_failed_write_fails_all_requests_of_its_record(
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


def test_producer_with_a_fatal_error_is_replaced(pending: PendingRequests) -> None:
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


PARTITIONS = 3


def asked_of(group_id: str, number: int = 0, member_id: str = "m") -> PendingRequest:
    request = replace(heartbeat(group_id, member_id), correlation_id=str(number))
    return PendingRequest(request, 0.0, 1_000, lambda outcomes: None)


def add(packer: Packer, *requests: PendingRequest) -> None:
    for request in requests:
        place = pack_slot_of(request.request.group_id, PARTITIONS)
        packer.add(place, request, encode(request.request))


def numbers(record: RequestRecord) -> list[str]:
    """Return the correlation ids of a record's requests, which must be the messages of its value."""
    assert [encode(request.request) for request in record.requests] == [*unpack(record.value)]
    return [request.correlation_id for request in record.requests]


@pytest.mark.parametrize(("characters", "remembered"), [(CACHED_MAX_CHARACTERS, 1), (32_767, 0)])
def test_pack_slots_of_long_group_ids_are_not_cached(characters: int, remembered: int) -> None:
    """Clients choose them: 20,000 ids of 32 kB would be much memory."""
    group_id = "g" * characters
    request_writer._cached_pack_slot_of.cache_clear()
    assert pack_slot_of(group_id, PARTITIONS) == PackSlot(
        partition_of(group_id, PARTITIONS), slot_of(group_id)
    )
    assert request_writer._cached_pack_slot_of.cache_info().currsize == remembered


def test_packed_record_is_limited_in_requests_and_bytes() -> None:
    short = [asked_of("g", number) for number in range(3)]
    long = [asked_of("g", number, member_id="m" * 600) for number in range(3, 5)]
    packer = Packer(max_requests=2, max_bytes=len(encode(long[0].request)) + 50)
    add(packer, *short, *long)
    assert drained(packer) == [["0", "1"], ["2"], ["3"], ["4"]]


def test_full_pack_is_written_before_the_next_one_begins() -> None:
    requests = [asked_of("g", number, member_id="m" * 300) for number in range(3)]
    packer = Packer(max_bytes=2 * len(encode(requests[0].request)) + 50)
    add(packer, *requests)
    assert drained(packer) == [["0", "1"], ["2"]]


def test_request_larger_than_a_pack_gets_its_own_record() -> None:
    packer = Packer(max_bytes=1_000)
    large = asked_of("g", 1, member_id="m" * 1_000)
    add(packer, asked_of("g", 0), large, asked_of("g", 2))
    (first,) = packer.next_records()
    packer.finish_write(first.pack_slot)
    (second,) = packer.next_records()
    assert (second.key, second.value) == (b"g", encode(large.request))
    packer.finish_write(second.pack_slot)
    assert drained(packer) == [["2"]]


def test_cancelled_request_is_not_packed() -> None:
    packer = Packer()
    requests = [asked_of("g", number) for number in range(3)]
    add(packer, *requests)
    requests[1].has_expired = True
    (record,) = packer.next_records()
    assert numbers(record) == ["0", "2"]
    add(packer, *requests[:1])
    requests[0].has_expired = True
    packer.finish_write(record.pack_slot)
    assert packer.next_records() == []
    assert packer.is_idle


@pytest.mark.parametrize("max_requests", [1, 3, 1_000])
@given(
    group_ids=st.lists(st.sampled_from([f"group {n}" for n in range(12)])), cuts=st.sets(st.integers(0, 30))
)
def test_requests_of_a_group_keep_order(max_requests: int, group_ids: list[str], cuts: set[int]) -> None:
    """And each request is in one record, which is for its place. Writes end at any time."""
    packer = Packer(max_requests)
    log: list[list[str]] = []
    under_way: list[PackSlot] = []
    for number, group_id in enumerate(group_ids):
        add(packer, asked_of(group_id, number))
        if number in cuts:
            for place in under_way:
                packer.finish_write(place)
            under_way = []
        for record in packer.next_records():
            under_way.append(record.pack_slot)
            assert {pack_slot_of(request.request.group_id, PARTITIONS) for request in record.requests} == {
                record.pack_slot
            }
            log.append(numbers(record))
    for place in under_way:
        packer.finish_write(place)
    appended = [int(number) for record in [*log, *drained(packer)] for number in record]
    for group_id in set(group_ids):
        of_group = [number for number, other in enumerate(group_ids) if other == group_id]
        assert [number for number in appended if group_ids[number] == group_id] == of_group


def drained(packer: Packer) -> list[list[str]]:
    """Write all that waits."""
    written: list[list[str]] = []
    while records := packer.next_records():
        for record in records:
            written.append(numbers(record))
            packer.finish_write(record.pack_slot)
    assert packer.is_idle
    return written
