"""Offsets in transactions in the operator: their records on the topics, and a move to other topics."""

import json
from collections.abc import Sequence

import msgspec
import pandas as pd

from kafka_why.contract.codec import PendingTransaction, transaction_key
from kafka_why.contract.kafka.history import Offset
from kafka_why.contract.kafka.requests import DeleteGroup, OffsetDelete, TopicPartitions
from kafka_why.partitioner import partition_of
from state.kafka.classic_group import ClassicGroup
from state.kafka.group import PendingOffsets
from state.kafka.offsets import precede_other_log
from tests.harness.common import Common
from tests.harness.operator_call import call, spark_state
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
