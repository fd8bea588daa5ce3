"""The report of acknowledged requests whose records are gone: read from the replica's answers to them."""

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from kafka_why.contract.codec import AnyRequest, encode, pack, pack_key, slot_of
from kafka_why.contract.early_answers import Headers, ReplicaId, early_headers
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    RegexResolved,
    TopicMetadata,
)
from kafka_why.contract.kafka.share_requests import ShareStateResult
from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.partitioner import partition_of
from streaming.replica.answers import EarlyRecord
from streaming.replica.state_machine import Record as LogRecord
from streaming.service.can_continue import LostGroup, LostOffset, LostRequestCollector
from streaming.service.outages.outage import SERVICE_REQUEST_TYPES, type_of
from tests.harness.coordinated_log import machine, with_clock_records
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat, marker, txn_commit

PARTITION = partition_of("g", LAYOUT.request_partitions)
TOO_LONG = "x" * 5_000


def commit(group_id: str, **offsets: int) -> OffsetCommit:
    """Return a commit of partitions `<topic>_<number>`. A partition with the offset -1 is refused."""
    topics: dict[str, list[CommittedPartition]] = {}
    for name, offset in offsets.items():
        topic, _, number = name.partition("_")
        topics.setdefault(topic, []).append(
            CommittedPartition(int(number), offset, -1, TOO_LONG if offset < 0 else "")
        )
    return OffsetCommit(
        group_id=group_id,
        correlation_id="1",
        reply_partition=0,
        client_id="c",
        client_host="h",
        api_version=9,
        version=RECORD_VERSION,
        topics=[CommittedTopic(topic, partitions) for topic, partitions in topics.items()],
    )


def answered(records: Iterable[Record]) -> list[SimpleNamespace]:
    """Return the records of the responses topic, as kafka-python gives them."""
    replica = machine()
    for record in with_clock_records(records):
        replica.apply(LogRecord(*record))
    return [response(early) for early in replica.answers.drain()]


def response(early: EarlyRecord, headers: Headers | None = None) -> SimpleNamespace:
    if headers is None:
        headers = early_headers(ReplicaId(1, 1), T0, early.commits, max_commits_bytes=1_000)
    return SimpleNamespace(value=early.value, headers=headers, partition=early.reply_partition)


def found(responses: Iterable[SimpleNamespace], begin: int = 0, end: int | None = None) -> list[LostGroup]:
    losses = LostRequestCollector(LAYOUT.requests_topic, {PARTITION: (begin, end)})
    for each in responses:
        losses.add(each)
    return losses.groups()


def packed() -> Record:
    requests = (heartbeat("g", "nobody"), commit("g", orders_0=3), commit("g", orders_1=4))
    return Log().append(T0, pack_key(slot_of("g")), pack(map(encode, requests)), PARTITION)


def in_order(*requests: AnyRequest) -> list[Record]:
    log = Log()
    return [log.request(T0 + n, request) for n, request in enumerate(requests)]


@pytest.mark.parametrize(
    ("records", "requests", "offsets"),
    [
        (
            in_order(commit("g", orders_0=3, orders_1=4, bills_0=9), commit("g", orders_1=5)),
            2,
            [LostOffset("bills", 0, 9), LostOffset("orders", 0, 3), LostOffset("orders", 1, 5)],
        ),
        (
            in_order(commit("g", orders_0=-1, orders_1=4, orders_2=-1, orders_3=5), heartbeat("g", "nobody")),
            1,
            [LostOffset("orders", 1, 4), LostOffset("orders", 3, 5)],
        ),
        (in_order(txn_commit("g", 17)), 1, [LostOffset("t", 0, 17), LostOffset("t", 1, 17)]),
        ([packed()], 2, [LostOffset("orders", 0, 3), LostOffset("orders", 1, 4)]),
    ],
    ids=["the last one", "what was refused is not lost", "of a transaction", "packed"],
)
def test_lost_commits_are_reported_with_the_last_offset_of_each_partition(
    records: list[Record], requests: int, offsets: list[LostOffset]
) -> None:
    assert found(answered(records)) == [LostGroup("g", requests, offsets)]


def test_only_deleted_requests_not_handled_by_a_batch_are_lost() -> None:
    log = Log()
    responses = answered([log.request(T0 + n, commit("g", orders_0=n)) for n in range(5)])
    assert found(responses, 1, 3) == [LostGroup("g", 2, [LostOffset("orders", 0, 2)])]
    assert found(responses, 4) == [LostGroup("g", 1, [LostOffset("orders", 0, 4)])]
    assert found(responses, 5) == []


def test_lost_offset_is_unknown_if_only_the_query_answered() -> None:
    replica = machine()
    for record in with_clock_records([Log().request(T0, commit("g", orders_0=3))]):
        replica.apply(LogRecord(*record))
    (early,) = replica.answers.drain()
    by_query, by_replica = response(early, []), response(early)
    assert found([by_query]) == [LostGroup("g", 1, [LostOffset("orders", 0, None)])]
    for both in ([by_query, by_replica], [by_replica, by_query]):
        assert found(both) == [LostGroup("g", 1, [LostOffset("orders", 0, 3)])]


@pytest.mark.parametrize(
    ("request_", "of_the_service", "of_the_watcher"),
    [
        (TopicMetadata(group_id="g", topics={"t": None}), True, True),
        (RegexResolved(group_id="g", patterns={}), True, False),
        (ShareStateResult(group_id="g", task="t", partitions=[]), True, False),
        (marker("g"), True, False),
        (txn_commit("g", 5), False, False),
    ],
    ids=["metadata", "patterns", "share coordinator", "follower of transactions", "client"],
)
def test_requests_of_the_service_itself_do_not_count_as_client_requests(
    request_: AnyRequest, of_the_service: bool, of_the_watcher: bool
) -> None:
    """A TransactionMarker that no batch has handled counts as an unread request, so that it is not lost."""
    assert (type_of(encode(request_)) in SERVICE_REQUEST_TYPES) is of_the_service
    assert (type_of(encode(request_)) == "TopicMetadata") is of_the_watcher


@pytest.mark.parametrize("value", [None, b"", b"{", pack([encode(marker("g"))])], ids=repr)
def test_packs_and_unreadable_records_count_as_gateway_traffic(value: bytes | None) -> None:
    assert type_of(value) not in SERVICE_REQUEST_TYPES
