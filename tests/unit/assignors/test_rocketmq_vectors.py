"""The allocations of RocketMQ 5.3.3's own classes, recorded in tests/data.

Each vector is one call of a strategy, with RocketMQ's answer. The random vectors are its answers to random
arguments: POP sharing, nested rooms, unusual broker names, repeated ids, nulls. Vectors of the strategy
CONFIG, and of nulls that no caller passes (NullPointerException), are left out.
"""

import lzma
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assignors.rocketmq.api import AllocateMessageQueueStrategy, IllegalArgumentException
from assignors.rocketmq.strategies import (
    DEFAULT_VIRTUAL_NODE_COUNT,
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    allocate_for_pop,
)
from kafka_why.contract.rocketmq.requests import MessageQueue, sort_client_ids, sort_queues

DATA = Path(__file__).parents[2] / "data"
POP_PREFIX = "POP/"
NEARBY = "MACHINE_ROOM_NEARBY-"


def answer_of(vector: dict[str, Any]) -> object:
    """Return our answer. `strategy` is the name of a strategy; or `POP/` and a name, for POP's sharing rule
    on that strategy; or SORT_MQ or SORT_CID, for the order in which clients sort queues or client ids.
    """
    name, clients, params = vector["strategy"], vector["cid_all"], vector.get("params", {})
    queues = queues_of(vector["mq_all"])
    if name == "SORT_MQ":
        return sort_queues(queues or [])
    if name == "SORT_CID":
        return sort_client_ids(clients)
    strategy = strategy_named(
        name.removeprefix(POP_PREFIX),
        params.get("consumeridcs") or (),
        params.get("virtual_node_cnt", DEFAULT_VIRTUAL_NODE_COUNT),
    )
    if not name.startswith(POP_PREFIX):
        return strategy.allocate(vector["current_cid"], queues, clients)
    shared = params.get("pop_share_queue_num", 0)
    return allocate_for_pop(strategy, vector["current_cid"], queues or [], clients, shared)


def strategy_named(
    name: str, rooms: Collection[str], virtual_node_count: int = DEFAULT_VIRTUAL_NODE_COUNT
) -> AllocateMessageQueueStrategy:
    """Return a strategy. For MACHINE_ROOM_NEARBY a room is the prefix of a name before its first `-`."""
    if name.startswith(NEARBY):
        inner = strategy_named(name.removeprefix(NEARBY), rooms, virtual_node_count)
        return AllocateMachineRoomNearby(inner, lambda queue: room_of(queue.broker_name), room_of)
    strategies: list[AllocateMessageQueueStrategy] = [
        AllocateMessageQueueAveragely(),
        AllocateMessageQueueAveragelyByCircle(),
        AllocateMessageQueueByMachineRoom(rooms),
        AllocateMessageQueueConsistentHash(virtual_node_count),
    ]
    return {strategy.name: strategy for strategy in strategies}[name]


def room_of(name: str) -> str:
    room, dash, _ = name.partition("-")
    return room if dash else ""


def queues_of(queues: list[dict[str, Any]] | None) -> list[MessageQueue] | None:
    return None if queues is None else [MessageQueue(q["topic"], q["broker"], q["queue"]) for q in queues]


def is_possible(vector: dict[str, Any]) -> bool:
    return "CONFIG" not in vector["strategy"] and "NullPointer" not in vector.get("error", "")


@pytest.mark.parametrize(
    ("name", "count"), [("rocketmq_allocation", 239), ("rocketmq_allocation_random", 240)]
)
def test_assignments_equal_rocketmqs_recorded_ones(name: str, count: int) -> None:
    vectors = msgspec.json.decode(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    assert len(vectors) == count
    for vector in filter(is_possible, vectors):
        expected = vector.get("error") or vector.get("expected_cids") or queues_of(vector["expected"])
        try:
            answer = answer_of(vector)
        except IllegalArgumentException as error:
            answer = f"{type(error).__name__}: {error}"
        assert answer == expected, vector
