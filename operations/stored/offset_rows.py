"""The rows of committed offsets, and of those that are pending in transactions."""

from collections.abc import Iterator
from uuid import UUID

from msgspec import Struct

from state.kafka.group import Group


class OffsetRow(Struct, frozen=True, kw_only=True):
    """A committed offset. `expire_at_ms` is set if the committer chose a retention time."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None
    topic_id: str | None


class PendingRow(Struct, frozen=True, kw_only=True):
    """The offset of a partition that is pending in a transaction, by the request with it.

    `txn_position` is the end of partition `txn_partition` of the markers topic when the request was made: the
    marker that ends the transaction is there or behind it. `requested_at_ms` is the time of the request,
    which will be that of the commit.
    """

    group_id: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_version: int
    txn_partition: int
    txn_position: int
    request: str
    requested_at_ms: int
    topic: str
    partition: int
    offset: int
    topic_id: str | None


def committed(group: Group) -> Iterator[OffsetRow]:
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


def pending(group: Group) -> Iterator[PendingRow]:
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
