"""Records of the transactions topic, made of a group's pending offsets."""

from uuid import UUID

from kafka_why.contract.codec import PendingTransaction
from state.kafka.group import Group, PendingOffsets


def pending_transaction(group: Group, entry: PendingOffsets) -> PendingTransaction:
    """The record of an entry of the group's pending offsets."""
    return PendingTransaction(
        group_id=group.group_id,
        incarnation=group.incarnation,
        transactional_id=entry.transactional_id,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        txn_version=entry.txn_version,
        txn_partition=entry.txn_partition,
        txn_position=entry.txn_position,
        txn_topic_id=None if entry.txn_topic_id is None else UUID(bytes=entry.txn_topic_id),
        request=entry.request,
        at_ms=entry.at_ms,
        partitions=sum(map(len, entry.offsets.values())),
    )
