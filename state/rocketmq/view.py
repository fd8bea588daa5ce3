"""The view of a RocketMQ group, made of its state."""

from kafka_why.contract.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot
from state.rocketmq.group import ClientChannelInfo, Group


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
