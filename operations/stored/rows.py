"""A group's state as rows: one for the group, and one for each member, offset, timer and queue lock.

The fields of a row are the keys of its JSON and, with `operations.stored.frames`, the columns of its SQL
table. Times are in ms since 1970, by the timestamps of the log.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.protocols.subscriptions import ProtocolError, by_topic
from kafka_why.rocketmq_group import group_state
from operations.stored.partition_rows import (
    OffsetRow,
    PendingRow,
    ShareRow,
    committed_offsets,
    pending_offsets,
    share_partitions,
)
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup, kind_of
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import KafkaGroup
from state.kafka.group import ConfigsOnly, DeadlineReached
from state.kafka.protocols import view_of
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from state.rocketmq.group import RocketMqGroup
from state.rocketmq.protocol import snapshot

_FAR_FUTURE_MS = 2**62


class StateTable(StrEnum):
    """The tables of a state."""

    GROUPS = "groups"
    MEMBERS = "members"
    OFFSETS = "offsets"
    PENDING = "pending"
    TIMERS = "timers"
    LOCKS = "locks"
    SHARES = "shares"


class MemberRole(StrEnum):
    """The role of a member.

    Kafka: a member, or an id that has not joined yet (KIP-394). RocketMQ: the connection of a consumer or a
    producer.
    """

    MEMBER = "member"
    PENDING = "pending"
    CONSUMER = "consumer"
    PRODUCER = "producer"


class GroupRow(Struct, frozen=True, kw_only=True):
    """A group. Fields of the other protocol are None."""

    group_id: str
    protocol: str  # Kafka or RocketMQ
    state: str
    members: int  # number of members, or of consumers' connections
    offsets: int  # number of the group's rows in the table `offsets`; likewise `pending` and `locks`
    pending: int
    locks: int
    group_type: str | None = None  # of Kafka's groups: classic, consumer, share or streams
    generation: int | None = None  # the group epoch, or the generation of a classic group
    assignment_epoch: int | None = None  # of the target assignment
    protocol_type: str | None = None
    protocol_name: str | None = None  # with epochs, the assignor of the target assignment
    leader_id: str | None = None
    subscribed_topics: list[str] | None = None
    state_since_ms: int | None = None  # when the group took its present state
    last_rebalance_at_ms: int | None = None
    last_rebalance_reason: str | None = None
    message_model: str | None = None
    consume_type: str | None = None
    consume_from_where: str | None = None
    clock_ms: int  # time of the group's last event
    next_deadline_ms: int | None
    quarantined: str | None  # the failure of a deadline, after which no deadline of the group fires
    incarnation: str  # id of the request that created the group
    seq: int  # number of history entries so far
    state_version: int  # of the encoding


class StoredMemberRow(Struct, frozen=True, kw_only=True):
    """A member."""

    group_id: str
    protocol: str
    role: MemberRole
    member_id: str  # Kafka's, or RocketMQ's connection
    client_id: str
    client_host: str | None = None
    group_instance_id: str | None = None
    is_leader: bool = False
    protocols: list[str] | None = None
    partitions: int | None = None  # number of assigned partitions
    # Partitions by topic that the member may use; None if the bytes are not of the consumer protocol.
    assignment: dict[str, list[int]] | None = None
    waits_for: str | None = None  # JoinGroup or SyncGroup, if that request waits for its answer
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    deadline_ms: int | None = None  # when a silent member expires; None if no heartbeat is due
    last_update_ms: int | None = None  # of the last heartbeat of a RocketMQ client
    language: str | None = None
    client_version: int | None = None
    member_epoch: int | None = None
    member_state: str | None = None
    revoking: dict[str, list[int]] | None = None  # partitions that the member has to give up
    target: dict[str, list[int]] | None = None  # partitions in the target assignment
    subscribed_topics: list[str] | None = None
    subscribed_pattern: str | None = None
    is_classic: bool | None = None  # the member is on the classic protocol


class TimerRow(Struct, frozen=True, kw_only=True):
    """An armed deadline."""

    group_id: str
    protocol: str
    kind: str  # heartbeat (of a member), join, sync, retention, or RocketMQ's scan
    deadline_ms: int
    member_id: str | None


class LockRow(Struct, frozen=True, kw_only=True):
    """The lock of a RocketMQ queue."""

    group_id: str
    topic: str
    broker_name: str
    queue_id: int
    client_id: str
    last_update_ms: int  # the client has held the lock at least since then


AnyRow = GroupRow | StoredMemberRow | OffsetRow | PendingRow | TimerRow | LockRow | ShareRow
ROW_OF: dict[StateTable, type[AnyRow]] = {
    StateTable.GROUPS: GroupRow,
    StateTable.MEMBERS: StoredMemberRow,
    StateTable.OFFSETS: OffsetRow,
    StateTable.PENDING: PendingRow,
    StateTable.TIMERS: TimerRow,
    StateTable.LOCKS: LockRow,
    StateTable.SHARES: ShareRow,
}


class GroupRows(Struct, frozen=True, kw_only=True):
    """All rows of one group."""

    group: GroupRow
    members: list[StoredMemberRow]
    offsets: list[OffsetRow]
    pending: list[PendingRow]
    timers: list[TimerRow]
    locks: list[LockRow]
    shares: list[ShareRow]

    def of(self, table: StateTable) -> Sequence[AnyRow]:
        """Return the group's rows of a table."""
        return [self.group] if table is StateTable.GROUPS else getattr(self, table)


def rows_of(group: AnyGroup, state_version: int, config: CoordinatorConfig) -> GroupRows:
    """Return the rows of a group. `config` decides RocketMQ's deadlines."""
    assert not isinstance(group, ConfigsOnly), "settings alone are no group"
    kind = kind_of(group)
    protocol = str(kind.group_type)
    if isinstance(group, RocketMqGroup):
        members, offsets, pending, locks = (
            list(_client_rows(group, protocol)),
            [],
            [],
            list(_lock_rows(group)),
        )
    else:
        members, offsets = list(_member_rows(group, protocol)), list(committed_offsets(group))
        pending, locks = list(pending_offsets(group)), []
    common: dict[str, Any] = {
        "group_id": group.group_id,
        "protocol": protocol,
        "offsets": len(offsets),
        "pending": len(pending),
        "locks": len(locks),
        "clock_ms": group.clock_ms,
        "next_deadline_ms": kind.next_deadline_ms(group, config),
        "quarantined": group.quarantined,
        "incarnation": group.incarnation,
        "seq": group.seq,
        "state_version": state_version,
    }
    return GroupRows(
        group=GroupRow(**common, **_protocol_fields(group)),
        members=members,
        offsets=offsets,
        pending=pending,
        timers=list(_timer_rows(group, protocol, config)),
        locks=locks,
        shares=list(share_partitions(group)) if isinstance(group, ShareGroup) else [],
    )


def _protocol_fields(group: KafkaGroup | RocketMqGroup) -> dict[str, Any]:
    """Return the fields of `GroupRow` that depend on the group's protocol."""
    if isinstance(group, RocketMqGroup):
        rocketmq_view = snapshot(group)
        return {
            "state": str(group_state(rocketmq_view)),
            "members": len(rocketmq_view.consumers),
            "subscribed_topics": sorted(rocketmq_view.subscriptions),
            "message_model": rocketmq_view.message_model,
            "consume_type": rocketmq_view.consume_type,
            "consume_from_where": rocketmq_view.consume_from_where,
        }
    view = view_of(group)
    return {
        "group_type": view.group_type,
        "state": view.state,
        "members": len(view.members),
        "generation": view.generation,
        "assignment_epoch": view.consumer.assignment_epoch if view.consumer else None,
        "protocol_type": view.protocol_type,
        "protocol_name": group.protocol_name if isinstance(group, ClassicGroup) else _assignor_name(view),
        "leader_id": view.leader_id,
        "subscribed_topics": view.subscribed_topics,
        "state_since_ms": view.state_timestamp_ms or None,
        "last_rebalance_at_ms": view.last_rebalance_at_ms,
        "last_rebalance_reason": view.last_rebalance_reason or None,
    }


def _assignor_name(view: GroupSnapshot) -> str | None:
    """Return the assignor of the target assignment, or None if there is none yet."""
    return (view.consumer.assignor_name or None) if view.consumer else None


def _member_rows(group: KafkaGroup, protocol: str) -> Iterator[StoredMemberRow]:
    """Yield a row for each member, then for each id that has not joined yet."""
    view = view_of(group)
    for member in view.members:
        yield StoredMemberRow(
            group_id=view.group_id,
            protocol=protocol,
            role=MemberRole.MEMBER,
            member_id=member.member_id,
            client_id=member.client_id,
            client_host=member.client_host,
            group_instance_id=member.group_instance_id,
            is_leader=member.member_id == view.leader_id,
            **_member_fields(group, member),
        )
    if not isinstance(group, ClassicGroup):
        return
    for member_id, pending in group.pending_members.items():
        yield StoredMemberRow(
            group_id=group.group_id,
            protocol=protocol,
            role=MemberRole.PENDING,
            member_id=member_id,
            client_id=pending.client_id,
            client_host=pending.client_host,
            deadline_ms=pending.heartbeat_deadline_ms,
        )


def _member_fields(group: KafkaGroup, member: MemberSnapshot) -> dict[str, Any]:
    """Return the fields of `StoredMemberRow` that depend on the member's protocol."""
    if isinstance(group, ClassicGroup):
        stored, assignment = group.members[member.member_id], _assignment(group, member)
        return {
            "protocols": [p.name for p in stored.protocols],
            "partitions": None if assignment is None else sum(map(len, assignment.values())),
            "assignment": assignment,
            "waits_for": "JoinGroup" if stored.parked_join else "SyncGroup" if stored.parked_sync else None,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "deadline_ms": stored.heartbeat_deadline_ms,
        }
    progress = member.consumer
    assert progress is not None, "a member of a group with epochs"
    fields: dict[str, Any] = {
        "partitions": sum(map(len, progress.assigned.values())),
        "assignment": progress.assigned,
        "deadline_ms": group.members[member.member_id].session_deadline_ms,
        "member_epoch": progress.member_epoch,
        "target": progress.target,
        "subscribed_topics": progress.subscribed_topic_names,
    }
    if isinstance(group, ShareGroup):
        return fields
    if isinstance(group, StreamsGroup):
        return fields | {
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "member_state": progress.state,
            "revoking": progress.revoking,
        }
    classic = group.members[member.member_id].classic
    return fields | {
        "protocols": None if classic is None else [p.name for p in classic.protocols],
        "session_timeout_ms": None if classic is None else classic.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "member_state": progress.state,
        "revoking": progress.revoking,
        "subscribed_pattern": progress.subscribed_topic_regex or None,
        "is_classic": classic is not None,
    }


def _assignment(group: ClassicGroup, member: MemberSnapshot) -> dict[str, list[int]] | None:
    """Return the partitions by topic, or None if the bytes are not of the consumer protocol type."""
    try:
        return by_topic(member.held()) if group.uses_consumer_group_protocol() else None
    except ProtocolError:
        return None


def _client_rows(group: RocketMqGroup, protocol: str) -> Iterator[StoredMemberRow]:
    """Yield a row for each connection of a consumer, then of a producer."""
    producers = group.producers.items()
    for role, clients in ((MemberRole.CONSUMER, group.channels()), (MemberRole.PRODUCER, producers)):
        for connection, info in clients:
            yield StoredMemberRow(
                group_id=group.group_id,
                protocol=protocol,
                role=role,
                member_id=connection,
                client_id=info.client_id,
                client_host=info.client_address or None,
                last_update_ms=info.last_update_ms,
                language=info.language,
                client_version=info.version,
                subscribed_topics=info.subscriptions,
            )


def _lock_rows(group: RocketMqGroup) -> Iterator[LockRow]:
    for queue, lock in sorted(group.locks.items()):
        yield LockRow(
            group_id=group.group_id,
            topic=queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            client_id=lock.client_id,
            last_update_ms=lock.last_update_ms,
        )


def _timer_rows(group: AnyGroup, protocol: str, config: CoordinatorConfig) -> Iterator[TimerRow]:
    """Yield all armed deadlines, because all are due by a time in the far future."""
    for due in kind_of(group).due_deadlines(group, _FAR_FUTURE_MS, config):
        if isinstance(due, DeadlineReached):
            kind, member_id = due.kind.name.lower(), due.member_id or None
        else:  # RocketMQ's scan
            kind, member_id = "scan", None
        yield TimerRow(
            group_id=group.group_id,
            protocol=protocol,
            kind=kind,
            deadline_ms=due.deadline_ms,
            member_id=member_id,
        )
