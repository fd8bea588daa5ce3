"""RocketMQ 5.3.3's ConsumerManager and RebalanceLockManager: their traces in tests/data, step by step.

The random traces are those of random requests. A step has an `op`, the result that RocketMQ `returned`, and
the state after the operation. A consumer manager's `age` sets a connection's last contact to `ms` ago. A lock
manager's `age` moves every lock's last renewal back by `ms`, so that two of them add up; its `set_age` sets
every lock's last renewal to `ms` ago. A connection's name that is used again after its `close` is another
connection.

Of the calls of RocketMQ's listener, those that notify clients (CHANGE) are compared. RocketMQ's tables have
no order. So lists of names are compared without order, and calls are compared group by group.
"""

import lzma
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    LockBatchMq,
    LockBatchMqResponse,
    MessageModel,
    MessageQueue,
    RegisterConsumer,
    RegisterResponse,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
)
from state.config import BrokerConfig
from state.protocol import Received
from state.rocketmq.context import Effects
from state.rocketmq.group import RocketMqGroup, ScanDue
from state.rocketmq.protocol import RocketMqEvent, RocketMqRequest, is_expired, step
from tests.harness.rocketmq_broker import notified

DATA = Path(__file__).parents[2] / "data"
ALL_EXPIRED = "all_expired_"
NOW_MS = 1_000_000_000
V2_FINGERPRINT = 1

Told = dict[str, Any]
"""A call of RocketMQ's listener."""


class Op(msgspec.Struct, frozen=True):
    """One operation on the broker. `op` decides which fields have a meaning. `ms` is in milliseconds."""

    op: str
    group: str = ""
    channel: str = ""
    client_id: str = ""
    model: MessageModel = MessageModel.CLUSTERING
    notify: bool = True
    subs: tuple[dict[str, Any], ...] = ()
    queues: tuple[int, ...] = ()
    ms: int = 0


class Broker:
    """A broker's two managers, and its network layer, which knows the groups of each connection. The time is
    always NOW_MS.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._states: dict[str, RocketMqGroup] = {}
        self._closes = Counter[str]()  # by the name of a connection
        self._joined = defaultdict[str, dict[str, None]](dict)  # the group ids of each connection

    def do(self, op: Op) -> tuple[object, list[Told]]:
        """Carry out an op; return its result (None if it has none) and the notifications."""
        connection = f"{op.channel}#{self._closes[op.channel]}"
        about: dict[str, Any] = {
            "group_id": op.group,
            "connection": connection,
            "client_id": op.client_id,
            "correlation_id": "",
            "reply_partition": 0,
        }
        queues = tuple(MessageQueue("topic", "broker", number) for number in op.queues)
        match op.op:
            case "register" | "register_no_update" | "register_without_sub":
                return self._register(op, about)
            case "unregister":
                config = SubscriptionGroupConfig(op.notify)
                return None, _told(op.group, self._send(UnregisterConsumer(**about, group_config=config)))
            case "close":
                return self._close(op.channel, connection)
            case "scan":
                effects = [(group_id, self._step(group_id, ScanDue(NOW_MS))) for group_id in [*self._states]]
                return None, [told for group_id, found in effects for told in _told(group_id, found)]
            case "lock":
                response = self._send(LockBatchMq(**about, mq_set=queues)).replies[0].response
                assert isinstance(response, LockBatchMqResponse)
                return sorted(queue.queue_id for queue in response.lock_ok_mq_set), []
            case "unlock":
                self._send(UnlockBatchMq(**about, mq_set=queues))
            case _:
                self._age(op, connection)
        return None, []

    def views(self) -> dict[str, Told | None]:
        """Return the groups by id as the consumer manager shows them; None for one without consumers."""
        return {group_id: _view(group) for group_id, group in self._states.items()}

    def is_lock_all_expired(self, group_id: str) -> bool:
        """Return True if no client holds a lock on any queue of the group."""
        group = self._states.get(group_id)
        locks = () if group is None else group.locks.values()
        return all(is_expired(lock, NOW_MS, self._config) for lock in locks)

    def _step(self, group_id: str, event: RocketMqEvent) -> Effects:
        effects = step(self._states.pop(group_id, None), group_id, event, NOW_MS, self._config)
        if effects.group is not None:
            self._states[group_id] = effects.group
        return effects

    def _send(self, request: RocketMqRequest) -> Effects:
        return self._step(request.group_id, Received("", request))

    def _register(self, op: Op, about: dict[str, Any]) -> tuple[object, list[Told]]:
        is_without_sub = op.op == "register_without_sub"
        request = RegisterConsumer(
            **about,
            message_model=op.model,
            subscription_data_set=tuple(
                SubscriptionData(sub["topic"], sub["expr"], sub["version"]) for sub in op.subs
            ),
            update_subscription=op.op != "register_no_update",
            heartbeat_fingerprint=V2_FINGERPRINT if is_without_sub else 0,
            is_without_sub=is_without_sub,
            group_config=SubscriptionGroupConfig(op.notify),
        )
        effects = self._send(request)
        response = effects.replies[0].response
        assert isinstance(response, RegisterResponse)
        if response.is_new and not is_without_sub:
            self._joined[request.connection][op.group] = None
        return response.changed, _told(op.group, effects)

    def _close(self, channel: str, connection: str) -> tuple[object, list[Told]]:
        self._closes[channel] += 1
        # RocketMQ visits all groups, or (fast) the groups that the connection joined by its full heartbeats.
        is_fast = self._config.enable_fast_channel_event_process
        group_ids = [*(self._joined.pop(connection, {}) if is_fast else self._states)]
        effects = [self._send(ConnectionClosed(group_id=id_, connection=connection)) for id_ in group_ids]
        told = [told for id_, found in zip(group_ids, effects, strict=True) for told in _told(id_, found)]
        return any(found.history for found in effects), told

    def _age(self, op: Op, connection: str) -> None:
        assert op.op in ("age", "set_age")
        for group in self._states.values():
            for known, info in group.channels():
                if known == connection:
                    info.last_update_ms = NOW_MS - op.ms
            for lock in group.locks.values():
                lock.last_update_ms = (NOW_MS if op.op == "set_age" else lock.last_update_ms) - op.ms


def _told(group_id: str, effects: Effects) -> list[Told]:
    """Return the notification, with the names of connections as the trace has them."""
    channels = [connection.rpartition("#")[0] for connection in notified(effects)]
    return [{"group": group_id, "event": "CHANGE", "channels": channels}] if channels else []


def _view(group: RocketMqGroup) -> Told | None:
    table = group.consumers.get("")
    if table is None or table.message_model is None:
        return None
    topics = {t: {"version": s.sub_version, "expr": s.sub_string} for t, s in table.subscriptions.items()}
    return {"client_ids": table.client_ids(), "subscriptions": topics, "model": table.message_model.value}


def _without_order(told: Told) -> Told:
    """Return a call or a view with its lists sorted."""
    return {name: sorted(value) if isinstance(value, list) else value for name, value in told.items()}


def _in_order(calls: Iterable[Told]) -> list[Told]:
    return sorted(map(_without_order, calls), key=lambda call: call["group"])


def check(trace: dict[str, Any]) -> None:
    settings = {"enable_fast_channel_event_process": trace.get("fast_channel_event_process", False)}
    broker = Broker(BrokerConfig(lock_max_live_ms=trace.get("lock_max_live_ms", 60_000), **settings))
    for traced in trace["steps"]:
        op = msgspec.convert(traced["op"], Op)
        returned, calls = broker.do(op)
        assert returned == traced["returned"], trace["name"]
        if trace["kind"] == "lock_manager":
            for name in (name for name in traced if name.startswith(ALL_EXPIRED)):
                assert broker.is_lock_all_expired(name.removeprefix(ALL_EXPIRED)) == traced[name]
            continue
        notifications = (event for event in traced["events"] if event.get("channels"))
        assert _in_order(calls) == _in_order(notifications), trace["name"]
        shown = {**dict.fromkeys(traced["state"]), **broker.views()}
        for views in (shown, traced["state"]):
            views |= {group_id: view and _without_order(view) for group_id, view in views.items()}
        assert shown == traced["state"], trace["name"]


@pytest.mark.parametrize(
    ("name", "count"), [("rocketmq_broker_traces", 45), ("rocketmq_broker_traces_random", 80)]
)
def test_answers_equal_rocketmqs_recorded_traces(name: str, count: int) -> None:
    traces = msgspec.json.decode(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    assert len(traces) == count
    for trace in traces:
        check(trace)
