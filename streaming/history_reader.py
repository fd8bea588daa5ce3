"""Reading the groups and events topics: what is new, what came twice, and what is missing.

Their writer is at-least-once, so a record may come again; what carries the same (group_id, incarnation, seq)
is the same. A history that skips a number has a gap: something is lost, or was deleted by retention before
this reader came.
"""

from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import Struct

from state.history import EventType, GroupEvent
from state.protocols import GroupProtocol
from state.snapshot import GroupSnapshot

# What a record that names no protocol is of.
KAFKA = GroupProtocol.KAFKA.value


class CoordinatorStarted(Struct, frozen=True, kw_only=True):
    """The entry a coordinator writes when it starts: which code and settings decide from which batch on."""

    at_ms: int
    from_batch: int
    settings: dict[str, int]
    skip: list[str] = []
    code_version: str = ""
    version: int = 1


class _Entry(Struct, frozen=True):
    type: str
    protocol: str = KAFKA


class _View(Struct, frozen=True):
    protocol: str = KAFKA


_GROUP_EVENTS = frozenset(EventType)

_entry = msgspec.json.Decoder(_Entry)
_view = msgspec.json.Decoder(_View)
_group_event = msgspec.json.Decoder(GroupEvent)
_coordinator_started = msgspec.json.Decoder(CoordinatorStarted)
_snapshot = msgspec.json.Decoder(GroupSnapshot)


def decode_entry(value: bytes) -> GroupEvent | CoordinatorStarted | None:
    """A record of the events topic, None for an unknown kind. Raises msgspec.DecodeError.

    Groups of RocketMQ's have a history of their own: see `streaming.rocketmq.history`.
    """
    entry = _entry.decode(value)
    kind = entry.type if entry.protocol == KAFKA else ""
    if kind == "CoordinatorStarted":
        return _coordinator_started.decode(value)
    return _group_event.decode(value) if kind in _GROUP_EVENTS else None


def decode_snapshot(value: bytes) -> GroupSnapshot | None:
    """A record of the groups topic that is no tombstone, None where the group is RocketMQ's.

    Raises msgspec.DecodeError.
    """
    return _snapshot.decode(value) if _view.decode(value).protocol == KAFKA else None


@dataclass(slots=True)
class _Life:
    """How far the history of one life of a group has been read."""

    last_seq: int
    missing: set[int] = field(default_factory=set)


class Numbered(Protocol):
    """An entry of any group's history: its name is what tells a copy from news."""

    @property
    def group_id(self) -> str: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def type(self) -> str: ...


class HistoryReader:
    """Tells new entries from repeated ones, and finds gaps.

    `from_start`: the topic is read from its first record, so an incarnation that does not begin with 1 has a
    gap too. Otherwise the first entry seen of an incarnation is where its history begins.
    """

    def __init__(self, *, from_start: bool) -> None:
        self.duplicates = 0
        self._from_start = from_start
        self._lives: dict[tuple[str, str], _Life] = {}

    @property
    def gaps(self) -> dict[tuple[str, str], list[int]]:
        """The numbers that are missing, by (group_id, incarnation); those without a gap are left out."""
        return {key: sorted(life.missing) for key, life in self._lives.items() if life.missing}

    def is_new(self, event: Numbered) -> bool:
        """Whether this entry has not been seen before. Entries of one group come in the log's order."""
        key = (event.group_id, event.incarnation)
        life = self._lives.get(key)
        if life is None:
            life = self._lives[key] = _Life(0 if self._from_start else event.seq - 1)
        if event.seq > life.last_seq:
            life.missing.update(range(life.last_seq + 1, event.seq))
            life.last_seq = event.seq
            return True
        if event.seq in life.missing:
            life.missing.remove(event.seq)
            return True
        self.duplicates += 1
        return False


class GroupTable:
    """The latest snapshot of every group."""

    def __init__(self) -> None:
        self.duplicates = 0
        self._groups: dict[str, GroupSnapshot] = {}

    @property
    def groups(self) -> list[GroupSnapshot]:
        """The groups there are now, by id."""
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    def apply(self, group_id: str, snapshot: GroupSnapshot | None) -> bool:
        """Take a record of the groups topic (None: a tombstone, or a group that is not Kafka's any more);
        whether it changed anything.
        """
        known = self._groups.get(group_id)
        if snapshot is None:
            return self._groups.pop(group_id, None) is not None
        if known is not None and known.incarnation == snapshot.incarnation and known.seq >= snapshot.seq:
            self.duplicates += 1
            return False
        self._groups[group_id] = snapshot
        return True
