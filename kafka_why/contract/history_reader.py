"""Reads records of the groups and events topics: new entries, repeated entries, and gaps.

The topics' writer is at-least-once, so a record may be repeated. Records with equal (group_id, incarnation,
seq) are the same entry. If a history skips a seq, an entry is lost, or retention deleted the entry before
this reader started.
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
    from_batch: int
    settings: dict[str, SettingValue]
    skip: list[str] = []
    code_version: str = ""
    owner_epoch: int = 0
    version: int = 1


class _Head(Struct, frozen=True):
    type: str = ""
    protocol: str = KAFKA


class GroupConfigs(Struct, frozen=True):
    """The settings that a group overrides, by Kafka's names. The group need not exist."""

    group_id: str
    incarnation: str
    seq: int
    configs: dict[str, SettingValue] = {}


_GROUP_EVENTS = frozenset(EntryType)

_head = msgspec.json.Decoder(_Head)
_group_event = msgspec.json.Decoder(HistoryEntry)
_rocketmq_event = msgspec.json.Decoder(RocketMqHistoryEntry)
_coordinator_started = msgspec.json.Decoder(CoordinatorStarted)
_snapshot = msgspec.json.Decoder(GroupSnapshot)
_rocketmq_snapshot = msgspec.json.Decoder(RocketMqSnapshot)
_configs = msgspec.json.Decoder(GroupConfigs)


def decode_any_entry(value: bytes) -> AnyHistoryEntry | CoordinatorStarted | None:
    """Decode a record of the events topic, or return None for an unknown type. Raises msgspec.DecodeError."""
    head = _head.decode(value)
    if head.protocol == GroupType.ROCKETMQ:
        return _rocketmq_event.decode(value)
    kind = head.type if head.protocol == KAFKA else ""
    if kind == "CoordinatorStarted":
        return _coordinator_started.decode(value)
    return _group_event.decode(value) if kind in _GROUP_EVENTS else None


def decode_entry(value: bytes) -> HistoryEntry | CoordinatorStarted | None:
    """Decode a record of the events topic, or return None for an unknown type or a RocketMQ group.

    Raises msgspec.DecodeError.
    """
    found = decode_any_entry(value)
    return None if isinstance(found, RocketMqHistoryEntry) else found


def decode_any_snapshot(value: bytes) -> AnyView | None:
    """Decode the view in a record of the groups topic, or return None if it has none.

    Raises msgspec.DecodeError.
    """
    protocol = _head.decode(value).protocol
    if protocol == GroupType.ROCKETMQ:
        return _rocketmq_snapshot.decode(value)
    return _snapshot.decode(value) if protocol == KAFKA else None


def decode_snapshot(value: bytes) -> GroupSnapshot | None:
    """Decode the view of a Kafka group, or return None for other records. Raises msgspec.DecodeError."""
    found = decode_any_snapshot(value)
    return found if isinstance(found, GroupSnapshot) else None


def decode_rocketmq_snapshot(value: bytes) -> RocketMqSnapshot | None:
    """Decode the view of a RocketMQ group, or return None for other records. Raises msgspec.DecodeError."""
    return _rocketmq_snapshot.decode(value) if _head.decode(value).protocol == GroupType.ROCKETMQ else None


def decode_configs(value: bytes) -> GroupConfigs | None:
    """Decode the settings that a group overrides, or return None if it overrides none.

    `value` is a record of the groups topic. Raises msgspec.DecodeError.
    """
    if _head.decode(value).protocol not in (KAFKA, CONFIGS):
        return None
    found = _configs.decode(value)
    return found if found.configs else None


class HistoryReader:
    """A filter that separates new entries from repeated ones, and finds gaps.

    If `from_start`, an incarnation whose first entry does not have seq 1 has a gap. Otherwise its history
    begins with the first entry that is read. `remembers` limits the number of incarnations in memory, for an
    endless reader. A forgotten incarnation begins a new history.
    """

    def __init__(self, *, from_start: bool, remembers: int | None = None) -> None:
        self.duplicates = 0
        self._from_start = from_start
        self._remembers = remembers
        # By (group_id, incarnation), the seq of the last entry, and the seqs that are missing before it.
        self._last_seq: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._missing: dict[tuple[str, str], set[int]] = {}

    @property
    def gaps(self) -> dict[tuple[str, str], list[int]]:
        """The missing seqs by (group_id, incarnation). Incarnations without a gap are omitted."""
        return {key: sorted(missing) for key, missing in self._missing.items()}

    def is_new(self, event: AnyHistoryEntry) -> bool:
        """Return True if this entry is new. Takes the entries of a group in the log's order."""
        key = (event.group_id, event.incarnation)
        last_seq = self._last_seq.get(key)
        if last_seq is None:
            last_seq = 0 if self._from_start else event.seq - 1
        if event.seq > last_seq:
            if missing := range(last_seq + 1, event.seq):
                self._missing.setdefault(key, set()).update(missing)
            self._remember(key, event.seq)
            return True
        missing_here = self._missing.get(key, set())
        if event.seq in missing_here:
            missing_here.remove(event.seq)
            if not missing_here:
                del self._missing[key]
            return True
        self.duplicates += 1
        return False

    def _remember(self, key: tuple[str, str], seq: int) -> None:
        self._last_seq[key] = seq
        if self._remembers is None:
            return
        self._last_seq.move_to_end(key)
        if len(self._last_seq) > self._remembers:
            forgotten, _ = self._last_seq.popitem(last=False)
            self._missing.pop(forgotten, None)


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
        self.duplicates = 0
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

        Return True if it changed anything. Raises one of UNREADABLE.
        """
        group_id = (key or b"").decode()
        view = None if value is None else self._decode(value)
        known = self._groups.get(group_id)
        # A tombstone, or the group id belongs to another protocol now.
        if view is None:
            return self._groups.pop(group_id, None) is not None
        if known is not None and known.incarnation == view.incarnation and known.seq >= view.seq:
            self.duplicates += 1
            return False
        self._groups[group_id] = view
        return True
