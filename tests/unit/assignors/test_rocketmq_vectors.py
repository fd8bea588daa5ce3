"""The allocations of RocketMQ 5.3.3's own classes, recorded in tests/data.

Each vector is one call of a strategy, with RocketMQ's answer. The random vectors are its answers to random
arguments: POP sharing, nested rooms, unusual broker names, repeated ids, nulls.
"""

import lzma
from pathlib import Path

import msgspec
import pytest

from assignors.rocketmq.api import IllegalArgumentException, NullPointerException
from assignors.rocketmq.strategies import (
    DEFAULT_VIRTUAL_NODE_COUNT,
    NamePrefixResolver,
    StrategySettings,
    allocate_for_pop,
    strategy_named,
)
from kafka_why.contract.rocketmq.queues import MessageQueue, sort_client_ids, sort_queues

DATA = Path(__file__).parents[2] / "data"
POP_PREFIX = "POP/"


class Queue(msgspec.Struct, frozen=True):
    """A queue in the format of the vectors."""

    topic: str
    broker: str
    queue: int


class Params(msgspec.Struct, frozen=True):
    """The arguments the strategy was made with, None for one that was not given. The only `resolver` goes by
    the prefix before the first `-`.
    """

    virtual_node_cnt: int | None = None
    consumeridcs: list[str] | None = None
    resolver: str | None = None
    message_queue_list: list[Queue] | None = None
    pop_share_queue_num: int = 0


class Vector(msgspec.Struct, frozen=True):
    """One call and its answer. The order of queues in an answer counts.

    `strategy` is the name of a strategy; or `POP/` and a name, for POP's sharing rule on that strategy; or
    SORT_MQ or SORT_CID, for the order in which clients sort queues or client ids. `expected_cids` is the
    answer of SORT_CID. `error` is "ExceptionClass: message", or None on success.
    """

    strategy: str
    current_cid: str | None
    mq_all: list[Queue] | None
    cid_all: list[str] | None
    expected: list[Queue] | None
    consumer_group: str = ""
    expected_cids: list[str] | None = None
    error: str | None = None
    params: Params = Params()
    note: str = ""


def answer_of(vector: Vector) -> list[MessageQueue] | list[str] | None:
    queues = queues_of(vector.mq_all)
    if vector.strategy == "SORT_MQ":
        return sort_queues(queues or [])
    if vector.strategy == "SORT_CID":
        return sort_client_ids(vector.cid_all or [])
    strategy = strategy_named(vector.strategy.removeprefix(POP_PREFIX), settings_of(vector.params))
    call = (vector.consumer_group, vector.current_cid, queues, vector.cid_all)
    if not vector.strategy.startswith(POP_PREFIX):
        return strategy.allocate(*call)
    return allocate_for_pop(strategy, *call, vector.params.pop_share_queue_num)


def settings_of(params: Params) -> StrategySettings:
    return StrategySettings(
        virtual_node_count=(
            DEFAULT_VIRTUAL_NODE_COUNT if params.virtual_node_cnt is None else params.virtual_node_cnt
        ),
        consumeridcs=params.consumeridcs,
        message_queue_list=queues_of(params.message_queue_list),
        machine_room_resolver=None if params.resolver is None else NamePrefixResolver(),
    )


def queues_of(queues: list[Queue] | None) -> list[MessageQueue] | None:
    return None if queues is None else [MessageQueue(q.topic, q.broker, q.queue) for q in queues]


@pytest.mark.parametrize(
    ("name", "count"), [("rocketmq_allocation", 239), ("rocketmq_allocation_random", 240)]
)
def test_assignments_equal_rocketmqs_recorded_ones(name: str, count: int) -> None:
    vectors = msgspec.json.decode(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()), type=list[Vector])
    assert len(vectors) == count
    for vector in vectors:
        try:
            answer: object = answer_of(vector)
        except (IllegalArgumentException, NullPointerException) as error:
            answer = f"{type(error).__name__}: {error}"
        assert answer == (vector.error or vector.expected_cids or queues_of(vector.expected)), vector
