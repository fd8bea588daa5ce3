"""Broker traces: what was done to RocketMQ's ConsumerManager or RebalanceLockManager, and what it did.

A step has an `op`, what that `returned`, and what is to be seen after it. A consumer manager's `age` says
that a connection was last heard of `ms` ago. A lock manager's `age` sets every lock's last renewal back by
`ms` from where it stands, so that two in a row add up; its `set_age` says that it was `ms` ago. A
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
    """One thing done to the broker; which fields count depends on `op`."""

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
    """A call of the listener."""

    group: str
    event: str
    channel: str | None = None
    client_id: str | None = None
    topics: tuple[str, ...] | None = None
    channels: tuple[str, ...] | None = None


class SubscriptionView(Struct, frozen=True):
    """A topic of a group."""

    version: int
    expr: str


class GroupView(Struct, frozen=True):
    """A group as it is to be seen."""

    client_ids: tuple[str, ...]
    subscriptions: dict[str, SubscriptionView]
    model: MessageModel


class ConsumerStep(Struct, frozen=True):
    """A step of a consumer manager; `state` is None for a group that is not there."""

    op: Op
    returned: bool | None
    events: list[Call]
    state: dict[str, GroupView | None]


class LockStep(Struct, frozen=True):
    """A step of a lock manager; `all_expired` goes by group."""

    op: Op
    returned: list[int] | None
    all_expired: dict[str, bool]


class ConsumerTrace(Struct, frozen=True):
    """A consumer manager's life, from an empty one."""

    name: str
    steps: list[ConsumerStep]
    fast_channel_event_process: bool = False


class LockTrace(Struct, frozen=True):
    """A lock manager's life, from an empty one."""

    name: str
    steps: list[LockStep]
    lock_max_live_ms: int = 60_000


class UnknownTrace(Struct, frozen=True):
    """A trace of something that is not known here."""

    kind: str
    name: str


Trace = ConsumerTrace | LockTrace | UnknownTrace


def decode(data: bytes) -> list[Trace]:
    """Read a file's content, a JSON list. Raises DecodeError."""
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
    """The step with what it says of groups, a key each, as one field."""
    seen = {k.removeprefix(ALL_EXPIRED_PREFIX): v for k, v in raw.items() if k.startswith(ALL_EXPIRED_PREFIX)}
    return {**raw, "all_expired": seen}
