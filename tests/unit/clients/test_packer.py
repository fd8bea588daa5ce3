"""Which requests go into which record."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clients import request_writer
from clients.pending import PendingRequest
from clients.request_writer import Packer, PackSlot, pack_slot_of
from kafka_why.contract.codec import encode, slot_of
from kafka_why.partitioner import CACHED_MAX_CHARACTERS, partition_of
from tests.spark.log import heartbeat

PARTITIONS = 3


def asked(group_id: str, number: int = 0, member_id: str = "m") -> PendingRequest:
    request = replace(heartbeat(group_id, member_id), correlation_id=str(number))
    return PendingRequest(request, 0.0, 1_000, lambda outcomes: None)


def add(packer: Packer, *requests: PendingRequest) -> None:
    for request in requests:
        place = pack_slot_of(request.request.group_id, PARTITIONS)
        packer.add(place, request, encode(request.request))


def numbers(requests: Sequence[PendingRequest]) -> list[str]:
    return [request.correlation_id for request in requests]


@pytest.mark.parametrize(("characters", "remembered"), [(CACHED_MAX_CHARACTERS, 1), (32_767, 0)])
def test_pack_slots_of_long_group_ids_are_not_cached(characters: int, remembered: int) -> None:
    """Clients choose them: 20,000 ids of 32 kB would be much memory."""
    group_id = "g" * characters
    request_writer._cached.cache_clear()
    assert pack_slot_of(group_id, PARTITIONS) == PackSlot(
        partition_of(group_id, PARTITIONS), slot_of(group_id)
    )
    assert request_writer._cached.cache_info().currsize == remembered


def test_packed_record_is_limited_in_requests_and_bytes() -> None:
    short = [asked("g", number) for number in range(3)]
    long = [asked("g", number, member_id="m" * 600) for number in range(3, 5)]
    packer = Packer(max_requests=2, max_bytes=len(encode(long[0].request)) + 50)
    add(packer, *short, *long)
    assert drained(packer) == [["0", "1"], ["2"], ["3"], ["4"]]


def test_a_request_larger_than_a_pack_is_a_record_of_its_own() -> None:
    packer = Packer(max_bytes=1_000)
    large = asked("g", 1, member_id="m" * 1_000)
    add(packer, asked("g", 0), large, asked("g", 2))
    (first,) = packer.next_records()
    packer.finish_write(first.pack_slot)
    (second,) = packer.next_records()
    assert (second.key, second.value) == (b"g", encode(large.request))
    packer.finish_write(second.pack_slot)
    assert drained(packer) == [["2"]]


def test_cancelled_request_is_not_packed() -> None:
    packer = Packer()
    requests = [asked("g", number) for number in range(3)]
    add(packer, *requests)
    requests[1].has_expired = True
    (record,) = packer.next_records()
    assert numbers(record.requests) == ["0", "2"]
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
        add(packer, asked(group_id, number))
        if number in cuts:
            for place in under_way:
                packer.finish_write(place)
            under_way = []
        for record in packer.next_records():
            under_way.append(record.pack_slot)
            assert {pack_slot_of(request.request.group_id, PARTITIONS) for request in record.requests} == {
                record.pack_slot
            }
            log.append(numbers(record.requests))
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
            written.append(numbers(record.requests))
            packer.finish_write(record.pack_slot)
    assert packer.is_idle
    return written
