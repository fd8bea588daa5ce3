"""The rows of partitions: committed offsets, offsets that are pending in transactions, and the states of the
partitions of share groups.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from msgspec import Struct

from state.kafka.group import Group
from state.kafka.share_group import ShareGroup


class OffsetRow(Struct, frozen=True, kw_only=True):
    """A committed offset."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None  # set if the committer chose a retention time
    topic_id: str | None


class PendingRow(Struct, frozen=True, kw_only=True):
    """The offset of a partition that is pending in a transaction."""

    group_id: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_version: int
    txn_partition: int
    # End of partition `txn_partition` of the topic with the transactions' markers, before the request. So the
    # marker of this transaction is at this offset or later.
    txn_position: int
    request: str  # id of the request that sent the offset
    requested_at_ms: int  # time of that request; the committed offset will have it
    topic: str
    partition: int
    offset: int
    topic_id: str | None


def committed_offsets(group: Group) -> Iterator[OffsetRow]:
    """Yield a row for each committed offset."""
    for topic, partitions in sorted(group.offsets.items()):
        for partition, offset in sorted(partitions.items()):
            yield OffsetRow(
                group_id=group.group_id,
                topic=topic,
                partition=partition,
                offset=offset.offset,
                leader_epoch=offset.leader_epoch if offset.leader_epoch >= 0 else None,
                metadata=offset.metadata,
                committed_at_ms=offset.committed_at_ms,
                expire_at_ms=offset.expire_at_ms,
                topic_id=None if offset.topic_id is None else str(UUID(bytes=offset.topic_id)),
            )


def pending_offsets(group: Group) -> Iterator[PendingRow]:
    """Yield a row for each offset that is pending in a transaction."""
    for entry in group.pending:
        for topic, partitions in entry.offsets.items():
            for partition, offset in partitions.items():
                yield PendingRow(
                    group_id=group.group_id,
                    transactional_id=entry.transactional_id,
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    txn_version=entry.txn_version,
                    txn_partition=entry.txn_partition,
                    txn_position=entry.txn_position,
                    request=entry.request,
                    requested_at_ms=entry.at_ms,
                    topic=topic,
                    partition=partition,
                    offset=offset.offset,
                    topic_id=None if offset.topic_id is None else str(UUID(bytes=offset.topic_id)),
                )


class ShareRow(Struct, frozen=True, kw_only=True):
    """A partition of a share group. If it is both initialized and initializing, it has two rows.

    A task is a request of the group to the cluster's share coordinator.
    """

    group_id: str
    topic: str
    partition: int
    state: str  # at the share coordinator: initializing, initialized or deleting
    task: str | None = None  # id of the open task with the partition
    asked_at_ms: int | None = None  # time of the task; the next two fields are of the task, too
    state_epoch: int | None = None
    start_offset: int | None = None
    error_code: int | None = None  # of the last response; None before the first
    topic_id: str


def share_partitions(group: ShareGroup) -> Iterator[ShareRow]:
    """Yield a row for each state of a partition at the share coordinator."""
    for topic_id, initialized in group.initialized.items():
        for number in initialized.partitions:
            yield _share_row(group, topic_id, initialized.name, number, "initialized")
    for topic_id, initializing in group.initializing.items():
        for number, task in initializing.partitions.items():
            yield _share_row(
                group,
                topic_id,
                initializing.name,
                number,
                "initializing",
                task=task.task or None,
                asked_at_ms=task.at_ms,
                state_epoch=task.state_epoch,
                start_offset=task.start_offset,
                error_code=task.error_code or None,
            )
    for topic_id, deleting in group.deleting.items():
        for number, code in deleting.partitions.items():
            yield _share_row(
                group,
                topic_id,
                deleting.name,
                number,
                "deleting",
                task=deleting.task or None,
                asked_at_ms=deleting.at_ms,
                error_code=code or None,
            )


def _share_row(
    group: ShareGroup, topic_id: bytes, topic: str, partition: int, state: str, **task: Any
) -> ShareRow:
    """Return a row with this state. `task` are the fields of the task, if the state has one."""
    return ShareRow(
        group_id=group.group_id,
        topic=topic,
        partition=partition,
        state=state,
        topic_id=str(UUID(bytes=topic_id)),
        **task,
    )
