"""Offsets in transactions in the operator: their records on the topics, and a move to other topics."""

import json
from collections.abc import Sequence

import msgspec
import pandas as pd

from kafka_why.contract.codec import PendingTransaction, encode, pack, pack_key, slot_of, transaction_key
from kafka_why.contract.kafka.offsets import Offset
from kafka_why.contract.kafka.requests import DeleteGroup, OffsetDelete, TopicPartitions
from kafka_why.partitioner import partition_of
from state.kafka.classic_group import ClassicGroup
from state.kafka.group import PendingOffsets
from state.kafka.offsets import precede_other_log
from tests.harness.common import Common
from tests.harness.operator_call import call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log, marker, txn_commit

PARTITION = partition_of("g", LAYOUT.request_partitions)
PRODUCER_ID = 4001
COMMON: Common = {
    "group_id": "g",
    "correlation_id": "c",
    "reply_partition": 1,
    "api_version": 5,
    "client_id": "c",
}


Written = dict[str, PendingTransaction | None]


def pending_in(frames: Sequence[pd.DataFrame]) -> Written:
    """Return the records of the transactions topic by the id of the request, None for a tombstone."""
    found: Written = {}
    for frame in frames:
        for topic, partition, key, value in frame.itertuples(index=False):
            if topic == LAYOUT.transactions_topic:
                assert partition == PARTITION
                group_id, producer_id, request = json.loads(key)
                assert key == transaction_key(group_id, producer_id, request)
                assert (group_id, producer_id) == ("g", PRODUCER_ID)
                found[request] = (
                    None if value is None else msgspec.json.decode(value, type=PendingTransaction)
                )
    return found


def test_pending_offsets_are_published_until_decided_then_get_a_tombstone() -> None:
    log, state = Log(), spark_state()
    sent = log.request(T0, txn_commit("g", 5))
    assert pending_in(call([sent], state)) == {
        sent.id: PendingTransaction(
            group_id="g",
            incarnation=sent.id,
            transactional_id="t-1",
            producer_id=PRODUCER_ID,
            producer_epoch=7,
            txn_version=2,
            txn_partition=0,
            txn_position=40,
            txn_topic_id=None,
            request=sent.id,
            at_ms=T0,
            partitions=2,
        )
    }
    decided = log.request(T0 + 1, marker("g"))
    frames = call([decided], spark_state(tuple(state.get)))
    assert pending_in(frames) == {sent.id: None}
    offsets = contents(frames, LAYOUT.offsets_topic)
    assert [(o["partition"], o["offset"], o["committed_at_ms"]) for o in offsets] == [(0, 5, T0), (1, 5, T0)]
    assert {o["request"] for o in offsets} == {decided.id}
    assert contents(frames, LAYOUT.events_topic) == []


def test_reduced_pending_entry_is_republished_and_a_removed_one_gets_a_tombstone() -> None:
    log, state = Log(), spark_state()
    sent = log.request(T0, txn_commit("g", 5))
    call([sent], state)
    one = OffsetDelete(**COMMON, topics=[TopicPartitions("t", [0])])
    state = spark_state(tuple(state.get))
    (record,) = pending_in(call([log.request(T0 + 1, one)], state)).values()
    assert record is not None
    assert record.partitions == 1
    for request in (OffsetDelete(**COMMON, topics=[TopicPartitions("t", [1])]), DeleteGroup(**COMMON)):
        frames = call([log.request(T0 + 2, request)], spark_state(tuple(state.get)))
        assert pending_in(frames) == {sent.id: None}
    in_one_call = call([sent, log.request(T0 + 3, marker("g", committed=False))], spark_state())
    assert pending_in(in_one_call) == {sent.id: None}, "a tombstone alone"


def test_requests_of_one_pack_have_distinct_positions() -> None:
    """The later request of a pack is committed, in whatever order their transactions end."""
    log, state = Log(), spark_state()
    messages = [encode(txn_commit("g", 5, 40)), encode(txn_commit("g", 6, 41))]
    record = log.append(T0, pack_key(slot_of("g")), pack(messages), PARTITION)
    assert pending_in(call([record], state)).keys() == {f"{record.id}#0", f"{record.id}#1"}
    markers = [log.request(T0 + 1, marker("g", 41)), log.request(T0 + 2, marker("g", 40))]
    frames = call(markers, spark_state(tuple(state.get)))
    assert {o["offset"] for o in contents(frames, LAYOUT.offsets_topic)} == {6}


def offset_at(position: tuple[int, int]) -> Offset:
    return Offset(5, -1, "", T0, None, None, position)


def test_moved_positions_keep_their_order_before_those_of_the_new_log() -> None:
    group = ClassicGroup("g", "i")
    group.offsets = {"t": {0: offset_at((900, 3)), 1: offset_at((-1, 0))}, "u": {0: offset_at((900, 4))}}
    held = PendingOffsets(
        "r", (950, 0), T0, "t-1", PRODUCER_ID, 7, 2, 0, 40, None, {"t": {0: offset_at((950, 0))}}
    )
    group.pending = [held]
    precede_other_log(group)
    assert [o.position for of in group.offsets.values() for o in of.values()] == [(-3, 0), (-4, 0), (-2, 0)]
    (moved,) = group.pending
    assert (moved.position, moved.offsets["t"][0].position, moved.request) == ((-1, 0), (-1, 0), "r")
