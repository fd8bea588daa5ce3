"""Reading the groups and events topics: what is new, what came twice, and what is missing.

Their writer is at-least-once, so a record may come again; what carries the same (group_id, incarnation, seq)
is the same. A history that skips a number has a gap: something is lost, or was deleted by retention before
this reader came.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from records import rocketmq_history as rocketmq
from records.truncation import AnyHistoryEntry, AnyView
from state.dispatch import GroupType
from state.kafka.history import EntryType, HistoryEntry
from state.kafka.snapshot import GroupSnapshot

# What a record that names no protocol is of.
KAFKA = GroupType.KAFKA.value


class CoordinatorStarted(Struct, frozen=True, kw_only=True):
    """The entry a coordinator writes when it starts: which code and settings decide from which batch on.

    `owner_epoch` is that of its claim on the topics, 0 where it is of a version that made none.
    """

    at_ms: int
    from_batch: int
    settings: dict[str, int]
    skip: list[str] = []
    code_version: str = ""
    owner_epoch: int = 0
    version: int = 1


class _Entry(Struct, frozen=True):
    type: str
    protocol: str = KAFKA


class _View(Struct, frozen=True):
    protocol: str = KAFKA


_GROUP_EVENTS = frozenset(EntryType)

_entry = msgspec.json.Decoder(_Entry)
_view = msgspec.json.Decoder(_View)
_group_event = msgspec.json.Decoder(HistoryEntry)
_coordinator_started = msgspec.json.Decoder(CoordinatorStarted)
_snapshot = msgspec.json.Decoder(GroupSnapshot)


def decode_entry(value: bytes) -> HistoryEntry | CoordinatorStarted | None:
    """A record of the events topic, None for an unknown kind. Raises msgspec.DecodeError.

    Groups of RocketMQ's have a history of their own: see `records.rocketmq_history`.
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


def decode_any_entry(value: bytes) -> AnyHistoryEntry | CoordinatorStarted | None:
    """The same of groups of either protocol."""
    return decode_entry(value) or rocketmq.decode_entry(value)


def decode_any_snapshot(value: bytes) -> AnyView | None:
    """A record of the groups topic that is no tombstone, whichever protocol the group is of."""
    return decode_snapshot(value) or rocketmq.decode_snapshot(value)


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
    def at_ms(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def reason(self) -> str: ...


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


class Versioned(Protocol):
    """A view of any group: which of its history's entries it is after."""

    @property
    def incarnation(self) -> str: ...
    @property
    def seq(self) -> int: ...


V = TypeVar("V", bound=Versioned)


class GroupTable(Generic[V]):
    """The latest view of every group that `decode` tells of; the others are left out."""

    def __init__(self, decode: Callable[[bytes], V | None]) -> None:
        self.duplicates = 0
        self._decode = decode
        self._groups: dict[str, V] = {}

    @property
    def groups(self) -> list[V]:
        """The groups there are now, by id."""
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    def take(self, key: bytes | None, value: bytes | None) -> bool:
        """Take a record of the groups topic; whether it changed anything.

        A tombstone ends a group, and so does a view that is not told of: the name is another protocol's now.
        Raises one of `records.codec.UNREADABLE`.
        """
        group_id = (key or b"").decode()
        view = None if value is None else self._decode(value)
        known = self._groups.get(group_id)
        if view is None:
            return self._groups.pop(group_id, None) is not None
        if known is not None and known.incarnation == view.incarnation and known.seq >= view.seq:
            self.duplicates += 1
            return False
        self._groups[group_id] = view
        return True
