"""How far back a report must read to find what the members held at its beginning.

The last two assignments before a rebalance determine what moved in it. Each entry says when the rebalance
before it began, so these assignments are found by time. The records between an assignment and the next
rebalance are read only if a static member returned under another member id.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from kafka_why.contract.any_group import AnyHistoryEntry
from kafka_why.contract.kafka.history import BY_EPOCHS, EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.why.segments import generation_before

# The clock of the record's writer stamps it, at or after the time of its entry by the brokers' clock. The
# margin is twice the allowed difference of the two: see `streaming.service.clock.ticker.DEFAULT_MAX_SKEW_MS`.
STAMP_MARGIN_MS = 10_000
_ASSIGNMENTS = 2
_ENDS = (EntryType.STABLE, EntryType.EMPTY)


class GroupLog(Protocol):
    """One group's entries on its partition of the events topic, by offsets from `begin` to `end`."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...

    def offset_at(self, at_ms: int) -> int:
        """Return the first offset whose record has a timestamp at or after a time, `end` if none has."""
        ...

    def entries(self, first: int, end: int) -> Iterable[AnyHistoryEntry]:
        """Yield the group's entries from offset `first` to before `end`; it reads no more than are taken."""
        ...

    def view(self) -> GroupSnapshot | None:
        """Return the group's current view, None if it does not exist or is not Kafka's."""
        ...


class RecentHistory(NamedTuple):
    """A group's last entries. `unread` are the names, (incarnation, seq), of entries between them that were
    not read because nothing depends on them. `from_start`: the entries begin with the first retained entry.
    """

    entries: list[AnyHistoryEntry]
    unread: frozenset[tuple[str, int]]
    from_start: bool


def entries_since(log: GroupLog, since_ms: int) -> RecentHistory:
    """Return the entries that a report of the rebalances that ended at or after `since_ms` needs.

    These are all entries for a RocketMQ group, for a group of the consumer protocol, and if no rebalance was
    before.
    """
    low = log.offset_at(since_ms - STAMP_MARGIN_MS)
    found = list(log.entries(low, log.end))
    unread: set[tuple[str, int]] = set()
    view = None if found else log.view()
    complete_from_ms = since_ms  # all entries from this time on have been found
    while low > log.begin and not _is_enough(found, since_ms):
        follows = _next(found, view)
        opening_ms = _first_opening_ms(found)
        if opening_ms is not None and opening_ms < complete_from_ms:
            # The events that led to this rebalance may be just before it.
            complete_from_ms = opening_ms
            at = min(low, log.offset_at(opening_ms - STAMP_MARGIN_MS))
            page, _ = _up_to(log.entries(at, low), follows)
        else:
            at, complete_from_ms = _further_back(log, low, _last_rebalance_at_ms(found, view))
            page, left_out = _up_to(log.entries(at, low), follows, _member_ids(found, view))
            unread |= left_out
        found = [*page, *found]
        low = at
    return RecentHistory(found, frozenset(unread), low <= log.begin)


def _further_back(log: GroupLog, low: int, rebalance_ms: int | None) -> tuple[int, int]:
    """Return the first offset to read, and the time from which all entries are then found.

    It is the offset of the rebalance that began at `rebalance_ms`, or of the first retained entry if that
    time is None or not before the offset `low`.
    """
    at = low if rebalance_ms is None else log.offset_at(rebalance_ms - STAMP_MARGIN_MS)
    return (log.begin, 0) if rebalance_ms is None or at >= low else (at, rebalance_ms)


def _first_opening_ms(found: list[AnyHistoryEntry]) -> int | None:
    return next((entry.at_ms for entry in found if entry.type is EntryType.PREPARING_REBALANCE), None)


def _is_enough(found: list[AnyHistoryEntry], since_ms: int) -> bool:
    if not found or not isinstance(found[-1], HistoryEntry):
        return False
    if not isinstance(found[0], HistoryEntry) or found[0].seq == 1:
        return True
    if any(isinstance(entry, HistoryEntry) and entry.group_type in BY_EPOCHS for entry in found):
        return False  # an entry shows one member's partitions, and may be as old as the group
    ended = [e for e in found if isinstance(e, HistoryEntry) and e.type in _ENDS and e.at_ms < since_ms]
    return len({(e.incarnation, e.seq) for e in ended}) >= _ASSIGNMENTS


def _last_rebalance_at_ms(found: list[AnyHistoryEntry], view: GroupSnapshot | None) -> int | None:
    if not found:
        return None if view is None else view.last_rebalance_at_ms
    return found[0].last_rebalance_at_ms if isinstance(found[0], HistoryEntry) else None


class _Next(NamedTuple):
    """The entry after the ones that are searched: its name, and the state in which it found the group."""

    incarnation: str
    seq: int
    state: str
    generation: int


def _next(found: list[AnyHistoryEntry], view: GroupSnapshot | None) -> _Next | None:
    if not found:
        return None if view is None else _Next(view.incarnation, view.seq + 1, view.state, view.generation)
    first = found[0]
    if isinstance(first, HistoryEntry):
        return _Next(first.incarnation, first.seq, first.from_state, generation_before(first))
    return _Next(first.incarnation, first.seq, "", 0)


def _member_ids(found: list[AnyHistoryEntry], view: GroupSnapshot | None) -> frozenset[str] | None:
    """Return the members before the known entries, and perhaps others; None if they are unknown."""
    if not found:
        return None if view is None else frozenset(member.member_id for member in view.members)
    for place, entry in enumerate(found):
        if not isinstance(entry, HistoryEntry):
            return None
        if entry.type is EntryType.TAKEN_OVER and entry.members is not None:
            return frozenset(entry.members)
        if entry.type is EntryType.PREPARING_REBALANCE and entry.waiting_for is not None:
            before = [e for e in found[: place + 1] if isinstance(e, HistoryEntry)]
            led_to = [e.member_id for e in before if e.cause == entry.cause and e.member_id]
            return frozenset([*entry.waiting_for, *led_to])
    return None


def _up_to(
    entries: Iterable[AnyHistoryEntry], follows: _Next | None, member_ids: frozenset[str] | None = None
) -> tuple[list[AnyHistoryEntry], set[tuple[str, int]]]:
    """Return the entries before `follows`, and the names of those that need not be read.

    If the last rebalance before `follows` assigned partitions only to `member_ids` (None if they are
    unknown), the entries begin with the end of that rebalance. The names are the names of the entries between
    it and `follows`.
    """
    page: list[AnyHistoryEntry] = []
    for entry in entries:
        page.append(entry)
        if follows is None:
            continue
        if (entry.incarnation, entry.seq + 1) == follows[:2]:
            break
        if member_ids is not None and isinstance(entry, HistoryEntry) and _is_last_end(entry, follows):
            holders = _holders(entry)
            if holders is not None and holders <= member_ids:
                return page, {(entry.incarnation, seq) for seq in range(entry.seq + 1, follows.seq)}
    return page, set()


def _is_last_end(entry: HistoryEntry, follows: _Next) -> bool:
    """Whether this entry ends the last rebalance before `follows`: each rebalance forms one generation."""
    is_earlier = entry.incarnation == follows.incarnation and entry.seq < follows.seq
    is_as_found = (entry.to_state, entry.generation) == (follows.state, follows.generation)
    return entry.type in _ENDS and is_earlier and is_as_found


def _holders(end: HistoryEntry) -> set[str] | None:
    """Return the members with an assignment at the end of a rebalance, None if the entry omits them."""
    if end.type is EntryType.EMPTY:
        return set()
    return None if end.assignments is None else set(end.assignments)
