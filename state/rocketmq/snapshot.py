"""The view of a RocketMQ group on the groups topic."""

from msgspec import Struct

from state.messages import RECORD_VERSION
from state.rocketmq.group import ClientChannelInfo, Group, RequestMode
from state.rocketmq.requests import ConsumeFromWhere, ConsumeType, MessageModel


class ConnectionSnapshot(Struct, frozen=True):
    """A connection and its client."""

    connection: str
    client_id: str
    language: str
    client_version: int


class GroupSnapshot(Struct, frozen=True, tag_field="protocol", tag="RocketMQ"):
    """The group after history entry number `seq` of this incarnation.

    `subscriptions` maps a topic to its filter; `request_modes` is keyed by topic. Changes without a history
    entry are not shown: times of the last heartbeat, and locks that are acquired and released. `truncated` is
    True if connections were omitted because the record would be too large.
    """

    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    message_model: MessageModel | None
    consume_type: ConsumeType | None
    consume_from_where: ConsumeFromWhere | None
    consumers: list[ConnectionSnapshot]
    producers: list[ConnectionSnapshot]
    subscriptions: dict[str, str]
    request_modes: dict[str, RequestMode]
    duplicate_client_ids: dict[str, list[str]]
    quarantined: str | None
    truncated: bool = False
    version: int = RECORD_VERSION


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
