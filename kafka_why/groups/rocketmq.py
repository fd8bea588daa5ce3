"""The description of a RocketMQ group: its clients, its topics, and how it consumes.

The description is from the groups topic, because no single request of RocketMQ's protocol returns all fields.
Source of the fields: ConsumerConnection of RocketMQ's consumerConnection command.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from kafka_why.contract.rocketmq.history import ConnectionSnapshot, GroupSnapshot
from kafka_why.contract.rocketmq.requests import RETRY_GROUP_TOPIC_PREFIX, MessageModel
from kafka_why.groups.list_groups import ROCKETMQ_TYPE
from kafka_why.rocketmq_group import (
    SUBSCRIPTIONS_EFFECT,
    TO_DO_DUPLICATE,
    TO_DO_SUBSCRIPTIONS,
    RocketMqGroupState,
    different_subscribers,
    duplicate_places,
    group_state,
)
from kafka_why.wording import Column, VisibleText, render_table, shortened

MAX_NAMED = 10
"""The maximum number of clients or topics in a remark."""


class ClientRow(Struct, frozen=True, kw_only=True):
    """A client's connection to a broker."""

    client_id: str
    connection: str  # its name in the group's history
    language: str
    client_version: int
    duplicate: bool  # another consumer connection to the broker has the same client id
    broker: str = ""  # `name/id`
    client_address: str = ""
    subscriptions: list[str] | None = None  # None if all clients have the same


class TopicRow(Struct, frozen=True, kw_only=True):
    """A topic that the group subscribes to."""

    topic: str
    filter: str  # the expression that selects messages
    request_mode: str | None  # None if clients allocate its queues themselves


class RocketMqRow(Struct, frozen=True, kw_only=True):
    """A RocketMQ group."""

    group: str
    type: str
    state: str
    message_model: str | None  # None without consumers
    consume_type: str | None  # None without consumers
    consume_from_where: str | None  # None without consumers
    clients: int
    consumers: list[ClientRow]
    producers: list[ClientRow]
    topics: list[TopicRow]
    duplicate_client_ids: dict[str, list[str]]  # connections by client id, if several share one
    duplicate_places: dict[str, list[str]]  # clients' addresses by client id
    different_subscriptions: dict[str, list[str]]  # clients by subscriptions, if these differ
    quarantined: str | None
    truncated: bool  # the group is too large for the groups topic, so its connections are omitted


def rocketmq_row(group: GroupSnapshot) -> RocketMqRow:
    """Return the group's row."""
    modes = {topic: mode.mode.value for topic, mode in group.request_modes.items()}
    return RocketMqRow(
        group=group.group_id,
        type=ROCKETMQ_TYPE,
        state=group_state(group),
        message_model=group.message_model,
        consume_type=group.consume_type,
        consume_from_where=group.consume_from_where,
        clients=len({consumer.client_id for consumer in group.consumers}),
        consumers=_clients(group.consumers, group),
        duplicate_places=duplicate_places(group),
        different_subscriptions={
            ", ".join(subscriptions): clients
            for subscriptions, clients in different_subscribers(group).items()
        },
        producers=_clients(group.producers, None),
        topics=[
            TopicRow(topic=topic, filter=expression, request_mode=modes.get(topic))
            for topic, expression in group.subscriptions.items()
        ],
        duplicate_client_ids=group.duplicate_client_ids,
        quarantined=group.quarantined,
        truncated=group.truncated,
    )


def _clients(connections: Sequence[ConnectionSnapshot], group: GroupSnapshot | None) -> list[ClientRow]:
    """Return the rows of connections. `group` is None for producers, which have no duplicates."""
    duplicates: set[str] = set()  # connections that share a client id
    if group is not None:
        duplicates.update(*group.duplicate_client_ids.values())
    return [
        ClientRow(
            client_id=c.client_id,
            connection=c.connection,
            language=c.language,
            client_version=c.client_version,
            duplicate=c.connection in duplicates,
            broker=c.broker,
            client_address=c.client_address,
            subscriptions=group.different_subscriptions.get(c.connection) if group else None,
        )
        for c in sorted(connections, key=lambda c: (c.client_id, c.connection))
    ]


def _remarks_text(client: ClientRow) -> str:
    """Return what distinguishes a client from the others, or ""."""
    remarks = ["DUPLICATE CLIENT ID"] if client.duplicate else []
    if client.subscriptions is not None:
        # Without the retry topic, to which each client subscribes by itself.
        chosen = [text for text in client.subscriptions if not text.startswith(RETRY_GROUP_TOPIC_PREFIX)]
        remarks.append(f"subscribes to {shortened(chosen, MAX_NAMED) or 'nothing'}")
    return ", ".join(remarks)


def rocketmq_remarks(row: RocketMqRow) -> Iterator[str]:
    """Yield remarks about the group's faults."""
    if row.state == RocketMqGroupState.OFFLINE:
        yield f"Consumer group '{row.group}' has no active members."
    if row.message_model == MessageModel.CLUSTERING:
        for client_id, places in row.duplicate_places.items():
            yield (
                f"Warning: {len(places)} clients of group '{row.group}' have the client id '{client_id}' "
                f"({shortened(places, MAX_NAMED)}): they take the same queues, and other queues may have no "
                f"consumer. To do: {TO_DO_DUPLICATE}."
            )
    if row.different_subscriptions:
        each = [
            f"{subscriptions or 'nothing'}: {shortened(clients, MAX_NAMED)}"
            for subscriptions, clients in row.different_subscriptions.items()
        ]
        yield (
            f"Warning: clients of group '{row.group}' have different subscriptions: {'; '.join(each)}. "
            f"{SUBSCRIPTIONS_EFFECT}. To do: {TO_DO_SUBSCRIPTIONS}."
        )
    if row.truncated:
        yield f"Warning: group '{row.group}' is too large for the groups topic: its clients are not shown."
    if row.quarantined is not None:
        yield f"Warning: group '{row.group}' is quarantined: {row.quarantined}"


def offsets_remark(group_id: str) -> str:
    """Return the remark that RocketMQ's brokers have the offsets of this group."""
    return f"Group '{group_id}' is one of {ROCKETMQ_TYPE}: its offsets are on RocketMQ's brokers."


def rocketmq_state_table(row: RocketMqRow) -> VisibleText:
    """Format the group's consume type and its numbers of clients and connections."""
    columns = [
        Column("GROUP"),
        Column("TYPE", 10),
        Column("STATE", 10),
        Column("MESSAGE-MODEL"),
        Column("CONSUME-TYPE", 18),
        Column("CONSUME-FROM-WHERE", 25),
        Column("#CLIENTS", 8),
        Column("#CONNECTIONS", 0),
    ]
    return render_table(
        columns,
        [
            [
                row.group,
                row.type,
                row.state,
                row.message_model,
                row.consume_type,
                row.consume_from_where,
                row.clients,
                len(row.consumers),
            ]
        ],
    )


def topic_table(row: RocketMqRow) -> VisibleText:
    """Format the group's subscriptions, which are those of the last heartbeat of any client."""
    columns = [Column("GROUP"), Column("TOPIC"), Column("FILTER"), Column("QUEUES-DEALT-OUT-BY", 0)]
    return render_table(
        columns,
        [
            [row.group, t.topic, t.filter, f"coordinator ({t.request_mode})" if t.request_mode else "clients"]
            for t in row.topics
        ],
    )


def client_table(row: RocketMqRow) -> VisibleText:
    """Format the group's connections. Duplicate client ids have a remark."""
    columns = [
        Column("GROUP"),
        Column("CLIENT-ID"),
        Column("ADDRESS"),
        Column("BROKER", 10),
        Column("CONNECTION"),
        Column("ROLE", 8),
        Column("LANGUAGE", 8),
        Column("VERSION", 7),
        Column("REMARK", 0),
    ]
    return render_table(
        columns,
        [
            [
                row.group,
                client.client_id,
                client.client_address or "-",
                client.broker or "-",
                client.connection,
                role,
                client.language,
                client.client_version,
                _remarks_text(client),
            ]
            for role, clients in (("consumer", row.consumers), ("producer", row.producers))
            for client in clients
        ],
    )
