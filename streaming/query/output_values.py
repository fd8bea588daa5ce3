"""The values of output records: responses, dead letters, committed offsets and pending transactions.

They need no data frame, so the operator's output shares them with the replica and with replays without Spark.
"""

from uuid import UUID

from kafka_why.contract.codec import (
    DEAD_LETTER_MAX_BYTES,
    MESSAGE_MAX_CHARS,
    CommittedOffset,
    DeadLetter,
    PendingTransaction,
    Reason,
    encode,
)
from kafka_why.contract.kafka.history import OffsetChange
from kafka_why.contract.layout import LIMIT
from kafka_why.contract.messages import RECORD_VERSION
from records.truncation import too_large_error
from state.kafka.context import Effects, Reply, TransactionChange
from state.kafka.group import Group, PendingOffsets
from state.rocketmq import context as rocketmq
from streaming.query.admission import LogMessage


def pending_transaction(group: Group, entry: PendingOffsets) -> PendingTransaction:
    """Return the record of an entry of the group's pending offsets."""
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


def committed_offset(
    group_id: str, incarnation: str, change: OffsetChange, request: str
) -> CommittedOffset | None:
    """Return the record of a committed offset, or None if the change deletes it.

    `request` is the id of the request, or of the record, that committed it.
    """
    offset = change.offset
    if offset is None:
        return None
    return CommittedOffset(
        group_id=group_id,
        incarnation=incarnation,
        topic=change.topic,
        partition=change.partition,
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        committed_at_ms=offset.committed_at_ms,
        expire_at_ms=offset.expire_at_ms,
        request=request,
        topic_id=None if offset.topic_id is None else UUID(bytes=offset.topic_id),
    )


# Answers to packed requests are sent in packs of about this size.
ANSWERS_MAX_BYTES = 256 * 1024


def response_value(
    reply: Reply | rocketmq.Reply, max_bytes: int, message: LogMessage | None = None
) -> tuple[bytes, DeadLetter | None]:
    """Encode a response, and return it with None. For a response of more than `max_bytes`, return an error
    response and the dead letter of its request.

    `message` is the message that is being applied, or None while only deadlines fire.
    """
    value, request = encode(reply.response), reply.response.request
    if len(value) <= max_bytes:
        return value, None
    text = f"the answer has {len(value)} bytes, {LIMIT} is {max_bytes}"
    # The response may answer an earlier request, which waited in the group. Its message is no longer
    # available.
    answered_message = message if message is not None and message.id == request else None
    key = b"" if answered_message is None else answered_message.row.key
    letter = dead_letter(Reason.RESPONSE_TOO_LARGE, text, key, answered_message, request, answered=True)
    return encode(too_large_error(reply.response)), letter


def transaction_record(effects: Effects, change: TransactionChange) -> PendingTransaction | None:
    """Return the record of a transaction's pending offsets, or None if they are no longer pending."""
    if change.pending is None:
        return None
    assert isinstance(effects.group, Group), "a group with pending offsets exists"
    return pending_transaction(effects.group, change.pending)


def dead_letter(
    reason: Reason, text: str, key: bytes, message: LogMessage | None, request: str = "", *, answered: bool
) -> DeadLetter:
    """Return the dead letter of a message that was refused or failed.

    `message` is None if it is no longer available. `request` is then its id, or "" if a deadline failed.
    `key` is the key of the message's record, or of the group whose deadline failed. `answered` is True if the
    request got a response.
    """
    return DeadLetter(
        version=RECORD_VERSION,
        reason=reason,
        message=text[:MESSAGE_MAX_CHARS],
        request=request or (message.id if message else ""),
        at_ms=message.row.at_ms if message else 0,
        answered=answered,
        # No valid group id has a key this long. The key is cut because it can be as large as a record's
        # value.
        key=key[:DEAD_LETTER_MAX_BYTES],
        value=message.value[:DEAD_LETTER_MAX_BYTES] if message else b"",
        value_bytes=len(message.value) if message else 0,
    )
