"""What is shown of a described group of RocketMQ's: its clients, its topics, and how it consumes.

It is read from the groups topic, for RocketMQ's protocol has no question that would answer all of it.
Source of what is told: ConsumerConnection of RocketMQ's consumerConnection command.
"""

from collections.abc import Container, Iterator, Sequence

from msgspec import Struct

from clients.rocketmq.broker import OFFSET_GROUP_PREFIX
from insight.admin.directory import ROCKETMQ_TYPE
from insight.admin.tables import Column, render_table
from insight.rocketmq_group import GroupState, group_state
from state.rocketmq.requests import MessageModel
from state.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot


class ClientRow(Struct, frozen=True, kw_only=True):
    """A connection; `duplicate` where another consumer's connection has the same client id."""

    client_id: str
    connection: str
    language: str
    client_version: int
    duplicate: bool


class TopicRow(Struct, frozen=True, kw_only=True):
    """A subscription; `request_mode` None where the topic's queues are dealt out by the clients."""

    topic: str
    filter: str
    request_mode: str | None


class RocketMqRow(Struct, frozen=True, kw_only=True):
    """A group. Model, type and start are None while it has no consumers; `truncated`: see the view."""

    group: str
    type: str
    state: str
    message_model: str | None
    consume_type: str | None
    consume_from_where: str | None
    clients: int
    consumers: list[ClientRow]
    producers: list[ClientRow]
    topics: list[TopicRow]
    duplicate_client_ids: dict[str, list[str]]
    quarantined: str | None
    truncated: bool


def rocketmq_row(group: GroupSnapshot) -> RocketMqRow:
    """The group as its view on the groups topic has it."""
    modes = {topic: mode.mode.value for topic, mode in group.request_modes.items()}
    return RocketMqRow(
        group=group.group_id,
        type=ROCKETMQ_TYPE,
        state=group_state(group),
        message_model=group.message_model,
        consume_type=group.consume_type,
        consume_from_where=group.consume_from_where,
        clients=len({consumer.client_id for consumer in group.consumers}),
        consumers=_clients(group.consumers, group.duplicate_client_ids),
        producers=_clients(group.producers, ()),
        topics=[
            TopicRow(topic=topic, filter=expression, request_mode=modes.get(topic))
            for topic, expression in group.subscriptions.items()
        ],
        duplicate_client_ids=group.duplicate_client_ids,
        quarantined=group.quarantined,
        truncated=group.truncated,
    )


def _clients(connections: Sequence[ConnectionSnapshot], duplicates: Container[str]) -> list[ClientRow]:
    return [
        ClientRow(
            client_id=c.client_id,
            connection=c.connection,
            language=c.language,
            client_version=c.client_version,
            duplicate=c.client_id in duplicates,
        )
        for c in sorted(connections, key=lambda c: (c.client_id, c.connection))
    ]


def rocketmq_remarks(row: RocketMqRow) -> Iterator[str]:
    """What the user is told about the group beside the tables."""
    if row.state == GroupState.OFFLINE:
        yield f"Consumer group '{row.group}' has no active members."
    if row.message_model == MessageModel.CLUSTERING:
        for client_id, connections in row.duplicate_client_ids.items():
            yield (
                f"Warning: {len(connections)} connections of group '{row.group}' have the client id "
                f"'{client_id}': they take the same queues, and other queues may be read by nobody."
            )
    if row.truncated:
        yield f"Warning: group '{row.group}' is too large for the groups topic: its clients are not shown."
    if row.quarantined is not None:
        yield f"Warning: group '{row.group}' is quarantined: {row.quarantined}"


def offsets_remark(group_id: str) -> str:
    """Where a RocketMQ group's offsets are."""
    return (
        f"Group '{group_id}' is one of {ROCKETMQ_TYPE}: its offsets are those of '{offset_group(group_id)}'."
    )


def offset_group(group_id: str) -> str:
    """The group that a RocketMQ group's offsets are committed under."""
    return f"{OFFSET_GROUP_PREFIX}{group_id}"


def rocketmq_state_table(row: RocketMqRow) -> str:
    """How the group consumes, and how many there are."""
    columns = [Column("GROUP"), Column("TYPE", 10), Column("STATE", 10), Column("MESSAGE-MODEL")]
    columns += [Column("CONSUME-TYPE", 18), Column("CONSUME-FROM-WHERE", 25)]
    columns += [Column("#CLIENTS", 8), Column("#CONNECTIONS", 0)]
    model = [row.message_model, row.consume_type, row.consume_from_where]
    return render_table(columns, [[row.group, row.type, row.state, *model, row.clients, len(row.consumers)]])


def topic_table(row: RocketMqRow) -> str:
    """What the group subscribes to: the last heartbeat's topics hold for all of its clients."""
    columns = [Column("GROUP"), Column("TOPIC"), Column("FILTER"), Column("QUEUES-DEALT-OUT-BY", 0)]
    return render_table(
        columns,
        [
            [row.group, t.topic, t.filter, f"coordinator ({t.request_mode})" if t.request_mode else "clients"]
            for t in row.topics
        ],
    )


def client_table(row: RocketMqRow) -> str:
    """Connections; those whose client id another one has too are marked."""
    columns = [Column("GROUP"), Column("CLIENT-ID"), Column("CONNECTION"), Column("ROLE", 8)]
    columns += [Column("LANGUAGE", 8), Column("VERSION", 7), Column("REMARK", 0)]
    return render_table(
        columns,
        [
            [
                *(row.group, client.client_id, client.connection, role),
                *(client.language, client.client_version),
                "DUPLICATE CLIENT ID" if client.duplicate else "",
            ]
            for role, clients in (("consumer", row.consumers), ("producer", row.producers))
            for client in clients
        ],
    )
