"""Allocation vectors: each is one call of a strategy, with RocketMQ's answer.

`strategy` is the name of a strategy; or `POP/` and a name, for POP's sharing rule on that strategy; or
SORT_MQ or SORT_CID, for the order in which clients sort queues or client ids. `error` is "ExceptionClass:
message", and the expected answer is then null. The order of queues in an answer counts.
"""

import msgspec

from assignors.rocketmq.api import IllegalArgumentException, NullPointerException
from assignors.rocketmq.consistent_hash import DEFAULT_VIRTUAL_NODE_COUNT
from assignors.rocketmq.machine_room_nearby import NamePrefixResolver
from assignors.rocketmq.message_queue import MessageQueue, sort_client_ids, sort_queues
from assignors.rocketmq.pop import allocate_for_pop
from assignors.rocketmq.strategies import Settings, UnknownStrategy, strategy_named

POP_PREFIX = "POP/"
PREFIX_RESOLVER = "prefix before first '-'"


class Queue(msgspec.Struct, frozen=True):
    """A queue in the format of the vectors."""

    topic: str
    broker: str
    queue: int


class Params(msgspec.Struct, frozen=True):
    """The arguments the strategy was made with; None stands for one that was not given.

    `resolver` is a description in words; only PREFIX_RESOLVER is known.
    """

    virtual_node_cnt: int | None = None
    consumeridcs: list[str] | None = None
    resolver: str | None = None
    message_queue_list: list[Queue] | None = None
    pop_share_queue_num: int | None = None


class Vector(msgspec.Struct, frozen=True):
    """One call and its answer. `expected_cids` is the answer of SORT_CID; `error` is None on success."""

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


class CannotRun(ValueError):
    """The vector needs an argument that is missing or unknown."""


def decode(data: bytes) -> list[Vector]:
    """Read a file's content, a JSON list of vectors. Raises DecodeError if it is malformed."""
    return msgspec.json.decode(data, type=list[Vector])


def failure(vector: Vector) -> str | None:
    """Return this implementation's difference from the vector, or None if there is none."""
    what = f"{vector.strategy} {vector.current_cid!r} ({vector.note})"
    expected: object = vector.error or _queues(vector.expected)
    if vector.strategy == "SORT_CID":
        expected = vector.expected_cids
    try:
        answer: object = _answer(vector)
    except (UnknownStrategy, CannotRun) as error:
        return f"{what}: {error}"
    except (IllegalArgumentException, NullPointerException) as error:
        answer = f"{type(error).__name__}: {error}"
    return None if answer == expected else f"{what}: expected {_shown(expected)}, got {_shown(answer)}"


def _answer(vector: Vector) -> list[MessageQueue] | list[str] | None:
    queues = _queues(vector.mq_all)
    if vector.strategy == "SORT_MQ":
        return sort_queues(queues or [])
    if vector.strategy == "SORT_CID":
        return sort_client_ids(vector.cid_all or [])
    strategy = strategy_named(vector.strategy.removeprefix(POP_PREFIX), _settings(vector.params))
    call = (vector.consumer_group, vector.current_cid, queues, vector.cid_all)
    if not vector.strategy.startswith(POP_PREFIX):
        return strategy.allocate(*call)
    if vector.params.pop_share_queue_num is None:
        raise CannotRun("params.pop_share_queue_num is missing")
    return allocate_for_pop(strategy, *call, vector.params.pop_share_queue_num)


def _settings(params: Params) -> Settings:
    if params.resolver is not None and not params.resolver.startswith(PREFIX_RESOLVER):
        raise CannotRun(f"unknown resolver {params.resolver!r}")
    return Settings(
        virtual_node_count=(
            DEFAULT_VIRTUAL_NODE_COUNT if params.virtual_node_cnt is None else params.virtual_node_cnt
        ),
        consumeridcs=params.consumeridcs,
        message_queue_list=_queues(params.message_queue_list),
        machine_room_resolver=None if params.resolver is None else NamePrefixResolver(),
    )


def _queues(queues: list[Queue] | None) -> list[MessageQueue] | None:
    return None if queues is None else [MessageQueue(q.topic, q.broker, q.queue) for q in queues]


def _shown(answer: object) -> str:
    return "[" + ", ".join(map(str, answer)) + "]" if isinstance(answer, list) else repr(answer)
