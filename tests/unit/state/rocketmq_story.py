"""One night of a RocketMQ group: three clients connect, one falls silent, one connects with
another's client id.
"""

from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.contract.rocketmq.requests import (
    AnyRequest,
    MessageModel,
    RegisterConsumer,
    SubscriptionData,
    UnregisterConsumer,
)
from state.config import CoordinatorConfig
from state.rocketmq.context import Effects
from state.timeline import Row, Timeline
from tests.harness.rocketmq_broker import of

BEGIN_MS = 1_795_230_000_000  # 2026-11-21 03:00 UTC
END_MS = BEGIN_MS + 360_000
LAST_MS = BEGIN_MS + 300_000
HEARTBEAT_INTERVAL_MS = 30_000
CONNECTIONS = (
    ("worker-1", "c1", BEGIN_MS, LAST_MS),
    ("worker-2", "c2", BEGIN_MS + 10_000, BEGIN_MS + 20_000),
    ("worker-3", "c3", BEGIN_MS + 20_000, LAST_MS),
    ("worker-1", "c4", BEGIN_MS + 180_000, BEGIN_MS + 210_000),
    ("worker-1", "c5", BEGIN_MS + 240_000, LAST_MS),
)
"""The client id of each connection, and the times between which it sends heartbeats."""
LEAVES = ("worker-1", "c4", BEGIN_MS + 210_000)


def night(group_id: str = "g") -> list[HistoryEntry]:
    """Return the history of a group. At its end two connections have the client id worker-1."""
    client_id, connection, at_ms = LEAVES
    leaving = UnregisterConsumer(**of(client_id, connection) | {"group_id": group_id})
    requests: list[tuple[int, AnyRequest]] = [(at_ms, leaving)]
    for client_id, connection, begin_ms, end_ms in CONNECTIONS:
        heartbeat = RegisterConsumer(
            **of(client_id, connection) | {"group_id": group_id},
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=(SubscriptionData("jobs"),),
        )
        requests += [(at_ms, heartbeat) for at_ms in range(begin_ms, end_ms, HEARTBEAT_INTERVAL_MS)]
    timeline = Timeline(group_id, None, CoordinatorConfig())
    for number, (at_ms, request) in enumerate(sorted(requests, key=lambda it: it[0])):
        timeline.apply(Row(at_ms, f"requests-0-{number}", request))
    history: list[HistoryEntry] = []
    for effects in timeline.drain_effects():
        assert isinstance(effects, Effects)
        history += effects.history
    return history
