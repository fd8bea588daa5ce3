"""Offsets that are pending in transactions, as the transactions topic has them, and their end by hand."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

import msgspec

from clients.coordinator_client import CoordinatorClient
from clients.pending import CoordinatorError
from insight.admin.tables import Column, render_table
from insight.visible import VisibleText
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, PendingTransaction
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import TransactionMarker
from kafka_why.contract.kafka.responses import TransactionMarkerResponse
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader

_decode = msgspec.json.Decoder(PendingTransaction).decode


def pending_transactions(
    client_config: ClientConfig, layout: TopicLayout, timeout_ms: int
) -> list[PendingTransaction]:
    """What is pending now, the oldest first. Raises KafkaError."""
    found: dict[bytes, bytes] = {}
    with TopicReader(client_config, timeout_ms=timeout_ms) as reader:
        for record in reader.read_all(layout.transactions_topic, timeout_ms=timeout_ms):
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = record.value
    return sorted(filter(None, map(_decoded, found.values())), key=lambda pending: pending.at_ms)


def abort_pending(client: CoordinatorClient, pending: Sequence[PendingTransaction]) -> list[ErrorCode]:
    """Drop these pending offsets, as an ABORT marker of their own transaction would do. Returns the
    coordinator's answer for each.
    """
    sent = [client.send(_marker(client, one)) for one in pending]
    return [_code(future) for future in sent]


def _marker(client: CoordinatorClient, pending: PendingTransaction) -> TransactionMarker:
    """The marker that would end this transaction by an abort, at its own position."""
    own_epoch = pending.producer_epoch + 1 if pending.txn_version > 1 else pending.producer_epoch
    return TransactionMarker(
        **client.header(pending.group_id),
        waits_for_views=True,
        producer_id=pending.producer_id,
        producer_epoch=own_epoch,
        txn_partition=pending.txn_partition,
        txn_position=pending.txn_position,
        txn_topic_id=pending.txn_topic_id,
        first_position=pending.txn_position,
        committed=False,
    )


def _code(future: Future[TransactionMarkerResponse]) -> ErrorCode:
    try:
        return future.result().error_code
    except CoordinatorError as error:
        return error.error_code


def _decoded(value: bytes) -> PendingTransaction | None:
    try:
        return _decode(value)
    except UNREADABLE:
        return None


def pending_table(pending: Iterable[PendingTransaction], now_ms: int) -> VisibleText:
    """Format what is pending, a line for each TxnOffsetCommit."""
    columns = [
        Column("GROUP"),
        Column("TRANSACTIONAL-ID"),
        Column("PRODUCER-ID"),
        Column("EPOCH"),
        Column("PARTITIONS"),
        Column("AGE-S", 0),
    ]
    return render_table(
        columns,
        [
            [
                one.group_id,
                one.transactional_id,
                str(one.producer_id),
                str(one.producer_epoch),
                str(one.partitions),
                str(max(0, now_ms - one.at_ms) // 1000),
            ]
            for one in pending
        ],
    )
