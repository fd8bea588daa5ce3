"""Offsets that are pending in transactions, as the transactions topic has them, and their end by hand."""

from collections.abc import Iterable

import msgspec

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, PendingTransaction
from kafka_why.contract.layout import TopicLayout
from kafka_why.escaping import VisibleText
from kafka_why.groups.tables import Column, render_table
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
