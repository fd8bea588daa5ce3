"""Reading the records of RocketMQ's groups on the groups and events topics. See
`kafka_why.contract.history_reader`.
"""

import msgspec
from msgspec import Struct

from kafka_why.contract.group_type import GroupType
from kafka_why.contract.rocketmq.history import EntryType, HistoryEntry
from kafka_why.contract.rocketmq.snapshot import GroupSnapshot


class _Entry(Struct, frozen=True):
    protocol: str = ""


_entry = msgspec.json.Decoder(_Entry)
_group_event = msgspec.json.Decoder(HistoryEntry)
_snapshot = msgspec.json.Decoder(GroupSnapshot)


def decode_entry(value: bytes) -> HistoryEntry | None:
    """Decode a record of the events topic, None if not of a RocketMQ group. Raises msgspec.DecodeError."""
    return _group_event.decode(value) if _is_ours(value) else None


def decode_snapshot(value: bytes) -> GroupSnapshot | None:
    """Decode a record of the groups topic that is not a tombstone. Returns None if the group is not
    RocketMQ's.

    Raises msgspec.DecodeError.
    """
    return _snapshot.decode(value) if _is_ours(value) else None


def is_expiry(event: HistoryEntry) -> bool:
    """Whether a scan removed a consumer's dead connection. All other removals follow a client's request."""
    return event.type is EntryType.CONSUMER_REMOVED and event.cause.startswith("scan at ")


def _is_ours(value: bytes) -> bool:
    return _entry.decode(value).protocol == GroupType.ROCKETMQ
