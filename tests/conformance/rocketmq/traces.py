"""Broker traces: recorded operations on RocketMQ's ConsumerManager or RebalanceLockManager, with results.

A step has an `op`, the result that RocketMQ `returned`, and the state after the operation. A consumer
manager's `age` sets a connection's last contact to `ms` ago. A lock manager's `age` moves every lock's last
renewal back by `ms`, so that two of them add up; its `set_age` sets every lock's last renewal to `ms` ago. A
connection's name that is used again after its `close` is another connection.
"""

from typing import Any

import msgspec
from msgspec import Struct

from state.rocketmq.requests import MessageModel

ALL_EXPIRED_PREFIX = "all_expired_"


class TracedSubscription(Struct, frozen=True):
    """A topic that a `register` names."""

    topic: str
    version: int
    expr: str


class Op(Struct, frozen=True):
    """One operation on the broker. `op` decides which fields have a meaning. `ms` is in milliseconds."""

    op: str
    group: str = ""
    channel: str = ""
    client_id: str = ""
    model: MessageModel = MessageModel.CLUSTERING
    notify: bool = True
    subs: tuple[TracedSubscription, ...] = ()
    queues: tuple[int, ...] = ()
    ms: int = 0


class Call(Struct, frozen=True, omit_defaults=True, order=True):
    """A call of RocketMQ's listener. None stands for an argument that the event does not have."""

    group: str
    event: str
    channel: str | None = None
    client_id: str | None = None
    topics: tuple[str, ...] | None = None
    channels: tuple[str, ...] | None = None


class SubscriptionView(Struct, frozen=True):
    """A group's subscription to a topic: its version and its filter expression."""

    version: int
    expr: str


class GroupView(Struct, frozen=True):
    """A group as the consumer manager shows it."""

    client_ids: tuple[str, ...]
    subscriptions: dict[str, SubscriptionView]
    model: MessageModel


class ConsumerStep(Struct, frozen=True):
    """A step of a consumer manager. `returned` is None for an op without a result.

    `state` maps group ids to views; None stands for a group that does not exist.
    """

    op: Op
    returned: bool | None
    events: list[Call]
    state: dict[str, GroupView | None]


class LockStep(Struct, frozen=True):
    """A step of a lock manager. `returned` is None unless the op is `lock`; `all_expired` is by group id."""

    op: Op
    returned: list[int] | None
    all_expired: dict[str, bool]


class ConsumerTrace(Struct, frozen=True):
    """The steps of a consumer manager that begins empty."""

    name: str
    steps: list[ConsumerStep]
    fast_channel_event_process: bool = False


class LockTrace(Struct, frozen=True):
    """The steps of a lock manager that begins empty."""

    name: str
    steps: list[LockStep]
    lock_max_live_ms: int = 60_000


class UnknownTrace(Struct, frozen=True):
    """A trace of a kind that this module does not know."""

    kind: str
    name: str


Trace = ConsumerTrace | LockTrace | UnknownTrace


def decode(data: bytes) -> list[Trace]:
    """Read a file's content, a JSON list of traces. Raises DecodeError if it is malformed."""
    raw = msgspec.json.decode(data, type=list[dict[str, Any]])
    traces = []
    for place, trace in enumerate(raw):
        try:
            traces.append(_trace(trace))
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} of trace {place}") from error
    return traces


def _trace(raw: dict[str, Any]) -> Trace:
    match raw.get("kind"):
        case "consumer_manager":
            return msgspec.convert(raw, ConsumerTrace)
        case "lock_manager":
            steps = msgspec.convert(raw.get("steps"), list[dict[str, Any]])
            return msgspec.convert({**raw, "steps": [_lock_step(step) for step in steps]}, LockTrace)
        case _:
            return msgspec.convert(raw, UnknownTrace)


def _lock_step(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the step with its `all_expired_<group>` keys merged into the one field `all_expired`."""
    seen = {k.removeprefix(ALL_EXPIRED_PREFIX): v for k, v in raw.items() if k.startswith(ALL_EXPIRED_PREFIX)}
    return {**raw, "all_expired": seen}
