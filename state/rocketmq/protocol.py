"""RocketMQ's broker side as a protocol."""

from collections.abc import Sequence
from typing import ClassVar

from kafka_why.contract.messages import ErrorResponse, GroupType
from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    GetConsumerListByGroup,
    LockBatchMq,
    QueryAssignment,
    RegisterConsumer,
    RegisterProducer,
    SetMessageRequestMode,
    UnlockBatchMq,
    UnregisterConsumer,
    UnregisterProducer,
)
from kafka_why.contract.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot
from state.config import CoordinatorConfig
from state.inputs import Outage
from state.protocol import GroupProtocol, Handlers
from state.rocketmq import consumer_manager, producer_manager, query_assignment, rebalance_lock_manager
from state.rocketmq.consumer_manager import heartbeat
from state.rocketmq.context import StepContext
from state.rocketmq.effects import Effects, Reply
from state.rocketmq.group import ClientChannelInfo, Group, LockEntry, ScanDue, next_scan


def take_over_group(context: StepContext, outage: Outage) -> None:
    """Renew all connections and locks, because no renewal could be handled in the outage.

    A RocketMQ broker that restarts has no clients until they reconnect. This coordinator keeps them.
    """
    group = context.group
    if group.quarantined is not None or not _heard_of(group):
        return
    _count_as_heard_of(context)
    context.record(
        EntryType.TAKEN_OVER,
        f"no coordinator ran for {outage.length_ms} ms: connections and locks count as heard of now",
    )


def renew(context: StepContext) -> None:
    """Renew all connections and locks of a group that is released, because their renewals were refused in the
    quarantine. A scan may have become due.
    """
    _count_as_heard_of(context)
    context.deadline_at(context.now_ms)


def _count_as_heard_of(context: StepContext) -> None:
    """Set the last update of every connection and lock to now, because requests were not handled
    until now.
    """
    for entry in _heard_of(context.group):
        entry.last_update_ms = context.now_ms


def _heard_of(group: Group) -> tuple[ClientChannelInfo | LockEntry, ...]:
    """Return the entries that expire when their client is silent."""
    return (*group.channels.values(), *group.producers.values(), *group.locks.values())


def snapshot(group: Group) -> GroupSnapshot:
    """Return a copy of the group for readers."""
    return GroupSnapshot(
        group_id=group.group_id,
        incarnation=group.incarnation,
        seq=group.seq,
        at_ms=group.clock_ms,
        message_model=group.message_model,
        consume_type=group.consume_type,
        consume_from_where=group.consume_from_where,
        consumers=_connections(group.channels),
        producers=_connections(group.producers),
        subscriptions={topic: sub.sub_string for topic, sub in group.subscriptions.items()},
        request_modes=dict(group.request_modes),
        duplicate_client_ids=group.duplicate_client_ids(),
        quarantined=group.quarantined,
    )


def _connections(table: dict[str, ClientChannelInfo]) -> list[ConnectionSnapshot]:
    return [
        ConnectionSnapshot(connection, info.client_id, info.language, info.version)
        for connection, info in table.items()
    ]


def _channel_closed(context: StepContext, request: ConnectionClosed) -> None:
    producer_manager.channel_closed(context, request)
    consumer_manager.channel_closed(context, request)


def _scan(context: StepContext, deadline: ScanDue) -> None:
    if context.has_group:
        context.group.last_fired_ms = max(context.group.last_fired_ms, deadline.deadline_ms)
        producer_manager.scan_producers(context)
        consumer_manager.scan_consumers(context)
        rebalance_lock_manager.scan_locks(context)


class RocketMq(GroupProtocol[Group, StepContext, ScanDue]):
    """See `GroupProtocol`. The only deadline is the next scan."""

    group_type = GroupType.ROCKETMQ
    group_class = Group
    handlers: ClassVar[Handlers] = {
        RegisterConsumer: heartbeat,
        RegisterProducer: producer_manager.register_producer,
        UnregisterConsumer: consumer_manager.unregister_consumer,
        UnregisterProducer: producer_manager.unregister_producer,
        ConnectionClosed: _channel_closed,
        GetConsumerListByGroup: consumer_manager.consumer_list,
        LockBatchMq: rebalance_lock_manager.lock_batch,
        UnlockBatchMq: rebalance_lock_manager.unlock_batch,
        QueryAssignment: query_assignment.query_assignment,
        SetMessageRequestMode: query_assignment.set_message_request_mode,
    }

    deadline_reached = staticmethod(_scan)
    take_over = staticmethod(take_over_group)
    release = staticmethod(renew)
    view = staticmethod(snapshot)

    def next_deadline_ms(self, group: Group, config: CoordinatorConfig) -> int | None:
        scan = next_scan(group, config.rocketmq)
        return None if scan is None else scan.deadline_ms

    def due_deadlines(self, group: Group, until_ms: int, config: CoordinatorConfig) -> list[ScanDue]:
        scan = next_scan(group, config.rocketmq)
        return [] if scan is None or scan.deadline_ms > until_ms else [scan]

    def is_armed(self, group: Group, deadline: ScanDue, config: CoordinatorConfig) -> bool:
        return next_scan(group, config.rocketmq) == deadline

    def refused(self, group: Group, answers: Sequence[tuple[int, ErrorResponse]]) -> Effects:
        return Effects(group, [Reply(*answer) for answer in answers])


ROCKETMQ = RocketMq()
