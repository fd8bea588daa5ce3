"""The allocations of RocketMQ 5.3.3's own classes, recorded in tests/data.

Each vector is one call of a strategy, with RocketMQ's answer. The random vectors are its answers to random
arguments: POP sharing, nested rooms, unusual broker names, repeated ids, nulls.
"""

import lzma
from pathlib import Path
from typing import Any

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
from kafka_why.contract.rocketmq.requests import MessageQueue, sort_client_ids, sort_queues

DATA = Path(__file__).parents[2] / "data"
POP_PREFIX = "POP/"


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
    strategy = strategy_named(name.removeprefix(POP_PREFIX), settings_of(params))
    call = (vector.get("consumer_group", ""), vector["current_cid"], queues, clients)
    if not name.startswith(POP_PREFIX):
        return strategy.allocate(*call)
    return allocate_for_pop(strategy, *call, params.get("pop_share_queue_num", 0))


def settings_of(params: dict[str, Any]) -> StrategySettings:
    """Return the arguments that the strategy was made with. The only `resolver` goes by the prefix before the
    first `-`.
    """
    return StrategySettings(
        virtual_node_count=params.get("virtual_node_cnt", DEFAULT_VIRTUAL_NODE_COUNT),
        consumeridcs=params.get("consumeridcs"),
        message_queue_list=queues_of(params.get("message_queue_list")),
        machine_room_resolver=NamePrefixResolver() if params.get("resolver") else None,
    )


def queues_of(queues: list[dict[str, Any]] | None) -> list[MessageQueue] | None:
    return None if queues is None else [MessageQueue(q["topic"], q["broker"], q["queue"]) for q in queues]


@pytest.mark.parametrize(
    ("name", "count"), [("rocketmq_allocation", 239), ("rocketmq_allocation_random", 240)]
)
def test_assignments_equal_rocketmqs_recorded_ones(name: str, count: int) -> None:
    vectors = msgspec.json.decode(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    assert len(vectors) == count
    for vector in vectors:
        expected = vector.get("error") or vector.get("expected_cids") or queues_of(vector["expected"])
        try:
            answer = answer_of(vector)
        except (IllegalArgumentException, NullPointerException) as error:
            answer = f"{type(error).__name__}: {error}"
        assert answer == expected, vector
