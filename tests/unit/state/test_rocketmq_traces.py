"""RocketMQ 5.3.3's ConsumerManager and RebalanceLockManager: their traces in tests/data, step by step.

The random traces are those of random requests. A step has an `op`, the result that RocketMQ `returned`, and
the state after the operation. A consumer manager's `age` sets a connection's last contact to `ms` ago. A lock
manager's `age` moves every lock's last renewal back by `ms`, so that two of them add up; its `set_age` sets
every lock's last renewal to `ms` ago. A connection's name that is used again after its `close` is another
connection.

RocketMQ's tables have no order. So lists of names are compared without order, and calls are compared group by
group. The calls of a scan are compared without order, because a scan removes connections in no fixed order.
"""

import lzma
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    LockBatchMq,
    MessageModel,
    RegisterConsumer,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
)
from kafka_why.contract.rocketmq.responses import LockBatchMqResponse, RegisterResponse
from state.config import BrokerConfig
from state.inputs import Received
from state.rocketmq.context import ConsumerGroupEvent, Effects, ListenerCall
from state.rocketmq.group import RocketMqGroup, ScanDue
from state.rocketmq.managers import is_expired
from state.rocketmq.protocol import RocketMqEvent, step

DATA = Path(__file__).parents[2] / "data"
ALL_EXPIRED_PREFIX = "all_expired_"
NOW_MS = 1_000_000_000
V2_FINGERPRINT = 1


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


def follow_consumers(trace: ConsumerTrace) -> None:
    broker = ConsumerBroker(BrokerConfig(enable_fast_channel_event_process=trace.fast_channel_event_process))
    for traced in trace.steps:
        returned, calls = broker.do(traced.op)
        got = ConsumerStep(traced.op, returned, calls, {**dict.fromkeys(traced.state), **broker.views()})
        assert _without_order(got) == _without_order(traced), trace.name


def follow_locks(trace: LockTrace) -> None:
    broker = LockBroker(BrokerConfig(lock_max_live_ms=trace.lock_max_live_ms))
    for traced in trace.steps:
        returned = broker.do(traced.op)
        expired = {group_id: broker.is_lock_all_expired(group_id) for group_id in traced.all_expired}
        expected = None if traced.returned is None else sorted(traced.returned)
        assert (returned, expired) == (expected, traced.all_expired), trace.name


class Groups:
    """The states of a broker's groups by group id. The time is always NOW_MS."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.states: dict[str, RocketMqGroup] = {}

    def step(self, group_id: str, event: RocketMqEvent) -> Effects:
        """Apply one event to the group, keep the group's new state, and return the effects."""
        effects = step(self.states.pop(group_id, None), group_id, event, NOW_MS, self.config)
        if effects.group is not None:
            self.states[group_id] = effects.group
        return effects


class ConsumerBroker:
    """A broker's consumer manager, and its network layer, which knows the groups of each connection."""

    def __init__(self, config: BrokerConfig) -> None:
        self._groups = Groups(config)
        self._closes: Counter[str] = (
            Counter()
        )  # by channel, because a name that is used again after a close is another connection
        self._attributes: defaultdict[str, dict[str, None]] = defaultdict(dict)  # connection -> group ids

    def views(self) -> dict[str, GroupView | None]:
        """Return the view of every group by group id; None for a group without consumers."""
        return {group_id: _view(group) for group_id, group in self._groups.states.items()}

    def do(self, op: Op) -> tuple[bool | None, list[Call]]:
        """Carry out an op; return its result (None if it has none) and the calls of the listener."""
        connection = f"{op.channel}#{self._closes[op.channel]}"
        match op.op:
            case "register" | "register_no_update" | "register_without_sub":
                return self._register(op, connection)
            case "unregister":
                return None, self._calls(op.group, Received("", _unregister(op, connection)))
            case "close":
                return self._close(op.channel, connection)
            case "scan":
                scan = ScanDue(NOW_MS)
                return None, [
                    c for group_id in list(self._groups.states) for c in self._calls(group_id, scan)
                ]
            case "age":
                for group in self._groups.states.values():
                    for known, info in group.channels():
                        if known == connection:
                            info.last_update_ms = NOW_MS - op.ms
                return None, []
        raise AssertionError(op)

    def _register(self, op: Op, connection: str) -> tuple[bool | None, list[Call]]:
        effects = self._groups.step(op.group, Received("", _register(op, connection)))
        response = effects.replies[0].response
        assert isinstance(response, RegisterResponse)
        calls = [_call(op.group, call) for call in effects.calls]
        if any(call.event == ConsumerGroupEvent.CLIENT_REGISTER for call in calls):
            self._attributes[connection][op.group] = None
        return response.changed, calls

    def _close(self, channel: str, connection: str) -> tuple[bool | None, list[Call]]:
        self._closes[channel] += 1
        # RocketMQ visits all groups, or (fast) the groups that the connection joined by its full heartbeats.
        is_fast = self._groups.config.enable_fast_channel_event_process
        group_ids = self._attributes.pop(connection, {}) if is_fast else self._groups.states
        calls = [
            call
            for group_id in list(group_ids)
            for call in self._calls(
                group_id, Received("", ConnectionClosed(group_id=group_id, connection=connection))
            )
        ]
        return bool(calls), calls

    def _calls(self, group_id: str, event: RocketMqEvent) -> list[Call]:
        return [_call(group_id, call) for call in self._groups.step(group_id, event).calls]


class LockBroker:
    """A broker's lock manager."""

    def __init__(self, config: BrokerConfig) -> None:
        self._groups = Groups(config)

    def is_lock_all_expired(self, group_id: str) -> bool:
        """Return True if no client holds a lock on any queue of the group."""
        group = self._groups.states.get(group_id)
        locks = () if group is None else group.locks.values()
        return all(is_expired(lock, NOW_MS, self._groups.config) for lock in locks)

    def do(self, op: Op) -> list[int] | None:
        """Carry out an op; return the numbers of the queues that a `lock` locked, None for other ops."""
        fields: dict[str, Any] = {
            "group_id": op.group,
            "connection": "",
            "client_id": op.client_id,
            "correlation_id": "",
            "reply_partition": 0,
            "mq_set": tuple(MessageQueue("topic", "broker", number) for number in op.queues),
        }
        match op.op:
            case "lock":
                response = (
                    self._groups.step(op.group, Received("", LockBatchMq(**fields))).replies[0].response
                )
                assert isinstance(response, LockBatchMqResponse)
                return sorted(queue.queue_id for queue in response.lock_ok_mq_set)
            case "unlock":
                self._groups.step(op.group, Received("", UnlockBatchMq(**fields)))
            case "age" | "set_age":
                for group in self._groups.states.values():
                    for lock in group.locks.values():
                        lock.last_update_ms = (NOW_MS if op.op == "set_age" else lock.last_update_ms) - op.ms
            case _:
                raise AssertionError(op)
        return None


def _register(op: Op, connection: str) -> RegisterConsumer:
    is_without_sub = op.op == "register_without_sub"
    return RegisterConsumer(
        group_id=op.group,
        connection=connection,
        client_id=op.client_id,
        correlation_id="",
        reply_partition=0,
        message_model=op.model,
        subscription_data_set=tuple(SubscriptionData(sub.topic, sub.expr, sub.version) for sub in op.subs),
        update_subscription=op.op != "register_no_update",
        heartbeat_fingerprint=V2_FINGERPRINT if is_without_sub else 0,
        is_without_sub=is_without_sub,
        group_config=SubscriptionGroupConfig(op.notify),
    )


def _unregister(op: Op, connection: str) -> UnregisterConsumer:
    return UnregisterConsumer(
        group_id=op.group,
        connection=connection,
        client_id=op.client_id,
        correlation_id="",
        reply_partition=0,
        group_config=SubscriptionGroupConfig(op.notify),
    )


def _call(group_id: str, call: ListenerCall) -> Call:
    """Return a call with the names of connections as the trace has them."""
    return Call(
        group=group_id,
        event=call.event.value,
        channel=None if call.connection is None else _channel(call.connection),
        client_id=call.client_id,
        topics=call.topics,
        channels=None if call.connections is None else tuple(map(_channel, call.connections)),
    )


def _channel(connection: str) -> str:
    return connection.rpartition("#")[0]


def _view(group: RocketMqGroup) -> GroupView | None:
    table = group.consumers.get("")
    if table is None or table.message_model is None:
        return None
    topics = {
        topic: SubscriptionView(sub.sub_version, sub.sub_string) for topic, sub in table.subscriptions.items()
    }
    return GroupView(tuple(table.client_ids()), topics, table.message_model)


def _without_order(traced: ConsumerStep) -> ConsumerStep:
    """Return the step with every list sorted that has no order in RocketMQ."""
    calls = [
        Call(c.group, c.event, c.channel, c.client_id, _sorted(c.topics), _sorted(c.channels))
        for c in traced.events
    ]
    calls.sort(key=lambda c: (c.group, c.event, c.channel or "") if traced.op.op == "scan" else (c.group,))
    state = {
        group_id: view and GroupView(tuple(sorted(view.client_ids)), view.subscriptions, view.model)
        for group_id, view in traced.state.items()
    }
    return ConsumerStep(traced.op, traced.returned, calls, state)


def _sorted(names: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(sorted(names))


def lock_step(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the step with its `all_expired_<group>` keys merged into the one field `all_expired`."""
    seen = {k.removeprefix(ALL_EXPIRED_PREFIX): v for k, v in raw.items() if k.startswith(ALL_EXPIRED_PREFIX)}
    return {**raw, "all_expired": seen}


@pytest.mark.parametrize(
    ("name", "count"), [("rocketmq_broker_traces", 45), ("rocketmq_broker_traces_random", 80)]
)
def test_answers_equal_rocketmqs_recorded_traces(name: str, count: int) -> None:
    traces = msgspec.json.decode(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    assert len(traces) == count
    for trace in traces:
        if trace["kind"] == "consumer_manager":
            follow_consumers(msgspec.convert(trace, ConsumerTrace))
        else:
            follow_locks(msgspec.convert({**trace, "steps": [*map(lock_step, trace["steps"])]}, LockTrace))
