"""Runs broker traces through `step` and reports each step whose outcome differs from RocketMQ's.

RocketMQ's tables have no order. So lists of names are compared without order, and calls are compared group by
group. The calls of a scan are compared without order, because a scan removes connections in no fixed order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from assignors.rocketmq.message_queue import MessageQueue
from state.config import BrokerConfig
from state.inputs import Received
from state.rocketmq.effects import ConsumerGroupEvent, Effects, ListenerCall
from state.rocketmq.group import Group
from state.rocketmq.rebalance_lock_manager import is_expired
from state.rocketmq.requests import (
    ConnectionClosed,
    LockBatchMq,
    RegisterConsumer,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
)
from state.rocketmq.responses import LockBatchMqResponse, RegisterResponse
from state.rocketmq.step import Event, step
from state.rocketmq.timers import ScanDue
from tests.conformance.rocketmq.traces import (
    Call,
    ConsumerStep,
    ConsumerTrace,
    GroupView,
    LockTrace,
    Op,
    SubscriptionView,
    Trace,
    UnknownTrace,
)

NOW_MS = 1_000_000_000
V2_FINGERPRINT = 1


class UnknownOp(ValueError):
    """A trace has an operation that this module does not know."""


def failure(trace: Trace) -> str | None:
    """Return the core's first difference from the trace, or None if there is none."""
    if isinstance(trace, UnknownTrace):
        return f"{trace.name}: unknown kind {trace.kind!r}"
    try:
        return _consumer_failure(trace) if isinstance(trace, ConsumerTrace) else _lock_failure(trace)
    except UnknownOp as error:
        return f"{trace.name}: {error}"


def _consumer_failure(trace: ConsumerTrace) -> str | None:
    broker = ConsumerBroker(BrokerConfig(enable_fast_channel_event_process=trace.fast_channel_event_process))
    for place, traced in enumerate(trace.steps):
        returned, calls = broker.do(traced.op)
        got = ConsumerStep(traced.op, returned, calls, {**dict.fromkeys(traced.state), **broker.views()})
        expected, got = _without_order(traced), _without_order(got)
        if got != expected:
            return f"{trace.name}, step {place}: expected {expected}, got {got}"
    return None


def _lock_failure(trace: LockTrace) -> str | None:
    broker = LockBroker(BrokerConfig(lock_max_live_ms=trace.lock_max_live_ms))
    for place, traced in enumerate(trace.steps):
        returned = broker.do(traced.op)
        expired = {group_id: broker.is_lock_all_expired(group_id) for group_id in traced.all_expired}
        expected = None if traced.returned is None else sorted(traced.returned)
        if (returned, expired) != (expected, traced.all_expired):
            return f"{trace.name}, step {place}: expected {traced}, got {returned}, all expired: {expired}"
    return None


class Groups:
    """The states of a broker's groups by group id. The time is always NOW_MS."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.states: dict[str, Group] = {}

    def step(self, group_id: str, event: Event) -> Effects:
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
                    if connection in group.channels:
                        group.channels[connection].last_update_ms = NOW_MS - op.ms
                return None, []
        raise UnknownOp(f"unknown op {op.op!r}")

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

    def _calls(self, group_id: str, event: Event) -> list[Call]:
        return [_call(group_id, call) for call in self._groups.step(group_id, event).calls]


class LockBroker:
    """A broker's lock manager."""

    def __init__(self, config: BrokerConfig) -> None:
        self._groups = Groups(config)

    def is_lock_all_expired(self, group_id: str) -> bool:
        """Whether no client holds a lock on any queue of the group."""
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
                raise UnknownOp(f"unknown op {op.op!r}")
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


def _view(group: Group) -> GroupView | None:
    if group.message_model is None:
        return None
    topics = {
        topic: SubscriptionView(sub.sub_version, sub.sub_string) for topic, sub in group.subscriptions.items()
    }
    return GroupView(tuple(group.client_ids()), topics, group.message_model)


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
