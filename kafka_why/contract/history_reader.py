"""Decodes records of the groups and events topics, and finds repeated and missing entries and old views.

The topics' writer is at-least-once, so a record may be repeated. Records with equal (group_id, incarnation,
seq) are the same entry. The incarnation distinguishes a group from earlier groups with the same id, and the
seq numbers an incarnation's entries. If a history skips a seq, an entry is lost, or retention deleted the
entry before this reader started.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import CONFIGS, ConfigsView, GroupSnapshot
from kafka_why.contract.messages import GroupType, SettingValue
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry

AnyView = GroupSnapshot | RocketMqSnapshot
"""A view of a group: the latest snapshot of its state."""


StoredView = AnyView | ConfigsView
"""A record of the groups topic: a group, or the settings of a group that does not exist."""


AnyHistoryEntry = HistoryEntry | RocketMqHistoryEntry


# The number of incarnations that an endless reader remembers. They need about 30 MiB.
INCARNATIONS_REMEMBERED = 100_000
# The protocol of a record that does not name it.
KAFKA = GroupType.KAFKA.value


class CoordinatorStarted(Struct, frozen=True, kw_only=True):
    """The entry that a coordinator writes when it starts, with its code version and settings."""

    at_ms: int
    from_batch: int  # the first batch with these settings
    settings: dict[str, SettingValue]  # of the coordinator
    skip: list[str] = []  # ids of the requests that are skipped
    code_version: str = ""
    owner_epoch: int = 0
    version: int = 1


class _Head(Struct, frozen=True):
    """The fields that decide how a record is decoded."""

    type: str = ""  # of an entry; views have none
    protocol: str = KAFKA


class GroupConfigs(Struct, frozen=True):
    """The settings that a group overrides, by Kafka's names. The group need not exist.

    It is decoded from a `GroupSnapshot` or a `ConfigsView`.
    """

    group_id: str
    incarnation: str
    seq: int
    configs: dict[str, SettingValue] = {}


_KAFKA_ENTRY_TYPES = frozenset(EntryType)

_head_decoder = msgspec.json.Decoder(_Head)
_kafka_entry_decoder = msgspec.json.Decoder(HistoryEntry)
_rocketmq_entry_decoder = msgspec.json.Decoder(RocketMqHistoryEntry)
_coordinator_started_decoder = msgspec.json.Decoder(CoordinatorStarted)
_kafka_snapshot_decoder = msgspec.json.Decoder(GroupSnapshot)
_rocketmq_snapshot_decoder = msgspec.json.Decoder(RocketMqSnapshot)
_configs_decoder = msgspec.json.Decoder(GroupConfigs)


def decode_any_entry(value: bytes) -> AnyHistoryEntry | CoordinatorStarted | None:
    """Decode a record of the events topic, or return None for an unknown type or protocol.

    Raises msgspec.DecodeError.
    """
    head = _head_decoder.decode(value)
    if head.protocol == GroupType.ROCKETMQ:
        return _rocketmq_entry_decoder.decode(value)
    if head.protocol != KAFKA:
        return None
    if head.type == "CoordinatorStarted":
        return _coordinator_started_decoder.decode(value)
    return _kafka_entry_decoder.decode(value) if head.type in _KAFKA_ENTRY_TYPES else None


def decode_any_snapshot(value: bytes) -> AnyView | None:
    """Decode the view of a group in a record of the groups topic, or return None if the record has no view.

    Raises msgspec.DecodeError.
    """
    protocol = _head_decoder.decode(value).protocol
    if protocol == GroupType.ROCKETMQ:
        return _rocketmq_snapshot_decoder.decode(value)
    return _kafka_snapshot_decoder.decode(value) if protocol == KAFKA else None


def decode_snapshot(value: bytes) -> GroupSnapshot | None:
    """Decode the view of a Kafka group, or return None for other records. Raises msgspec.DecodeError."""
    view = decode_any_snapshot(value)
    return view if isinstance(view, GroupSnapshot) else None


def decode_rocketmq_snapshot(value: bytes) -> RocketMqSnapshot | None:
    """Decode the view of a RocketMQ group, or return None for other records. Raises msgspec.DecodeError."""
    return (
        _rocketmq_snapshot_decoder.decode(value)
        if _head_decoder.decode(value).protocol == GroupType.ROCKETMQ
        else None
    )


def decode_configs(value: bytes) -> GroupConfigs | None:
    """Decode the settings that a Kafka group overrides, or return None if it overrides none.

    `value` is a record of the groups topic. For a group of another protocol, return None. Raises
    msgspec.DecodeError.
    """
    if _head_decoder.decode(value).protocol not in (KAFKA, CONFIGS):
        return None
    group = _configs_decoder.decode(value)
    return group if group.configs else None


class HistoryReader:
    """A filter that separates new entries from repeated ones, and finds gaps.

    If `from_start`, an incarnation whose first entry does not have seq 1 has a gap. Otherwise its history
    begins with the first entry that is read. `remembers` is the maximum number of incarnations in memory, for
    an endless reader, or None without a limit. The incarnation whose last entry is the oldest is forgotten
    first. Its next entry is treated as its first.
    """

    def __init__(self, *, from_start: bool, remembers: int | None = None) -> None:
        self.duplicates = 0  # number of repeated entries
        self._from_start = from_start
        self._remembers = remembers
        # By (group_id, incarnation): the greatest seq, and the seqs that are missing before it.
        self._last_seq: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._missing: dict[tuple[str, str], set[int]] = {}

    @property
    def gaps(self) -> dict[tuple[str, str], list[int]]:
        """The missing seqs by (group_id, incarnation). Incarnations without a gap are omitted."""
        return {key: sorted(missing) for key, missing in self._missing.items()}

    def is_new(self, event: AnyHistoryEntry) -> bool:
        """Return True if this entry is new: it is the next one, or was missing.

        The entries of a group must be given in the log's order.
        """
        key = (event.group_id, event.incarnation)
        last_seq = self._last_seq.get(key)
        if last_seq is None:
            last_seq = 0 if self._from_start else event.seq - 1
        if event.seq > last_seq:
            if missing := range(last_seq + 1, event.seq):
                self._missing.setdefault(key, set()).update(missing)
            self._remember(key, event.seq)
            return True
        still_missing = self._missing.get(key, set())
        if event.seq in still_missing:
            still_missing.remove(event.seq)
            if not still_missing:
                del self._missing[key]
            return True
        self.duplicates += 1
        return False

    def _remember(self, key: tuple[str, str], seq: int) -> None:
        """Store an incarnation's last seq, and forget another incarnation if there are too many."""
        self._last_seq[key] = seq
        if self._remembers is None:
            return
        self._last_seq.move_to_end(key)
        if len(self._last_seq) > self._remembers:
            oldest, _ = self._last_seq.popitem(last=False)
            self._missing.pop(oldest, None)


class Versioned(Protocol):
    """A view of any group. `seq` is the seq of the last history entry before the view."""

    @property
    def incarnation(self) -> str: ...
    @property
    def seq(self) -> int: ...


V = TypeVar("V", bound=Versioned)


class GroupTable(Generic[V]):
    """The latest views of groups. Groups for which `decode` returns None are omitted."""

    def __init__(self, decode: Callable[[bytes], V | None]) -> None:
        self.duplicates = 0  # number of views that were not newer than the stored one
        self._decode = decode
        self._groups: dict[str, V] = {}

    @property
    def groups(self) -> list[V]:
        """The existing groups in the order of their ids."""
        # Store the sorted order, because sorting again after a few additions then takes a tenth of the time.
        self._groups = {group_id: self._groups[group_id] for group_id in sorted(self._groups)}
        return list(self._groups.values())

    def get(self, group_id: str) -> V | None:
        """Return the view of a group, or None if the group does not exist."""
        return self._groups.get(group_id)

    def apply(self, key: bytes | None, value: bytes | None) -> bool:
        """Apply a record of the groups topic.

        Return True if it changed a view. Raises UnicodeDecodeError, and the errors of `decode`.
        """
        group_id = (key or b"").decode()
        view = None if value is None else self._decode(value)
        stored = self._groups.get(group_id)
        if view is None:  # a tombstone, or the group id now belongs to another protocol
            return self._groups.pop(group_id, None) is not None
        if stored is not None and stored.incarnation == view.incarnation and stored.seq >= view.seq:
            self.duplicates += 1
            return False
        self._groups[group_id] = view
        return True
