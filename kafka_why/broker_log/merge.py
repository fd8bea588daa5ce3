"""Merges two kinds of evidence about one group: its records on `__consumer_offsets`, and its lines in
brokers' logs.

The records have generations, members and assignments; the lines have the times at which rebalances began, and
their reasons. Rebalances of a classic group are matched by generation. The lines then replace what was
inferred from the records about the beginning and the members; times are converted to the records' clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from kafka_why.broker_log.group import OF_MEMBERS
from kafka_why.contract.kafka.history import BY_EPOCHS, EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import counted, last_commit_in, listed

_FORMS = (EntryType.COMPLETING_REBALANCE, EntryType.EMPTY)
_REMOVED, _ADDED = EntryType.MEMBER_REMOVED, EntryType.MEMBER_ADDED
# The records show a member that expired and came back as new or returned; the lines show both steps.
_JOINS = (_ADDED, EntryType.MEMBER_REPLACED, EntryType.MEMBER_REJOINED)
_SAME = dict.fromkeys(_JOINS, _JOINS)
_FROM_RECORDS = ("client_id", "client_host", "group_instance_id")
# A greater difference means that the time zone or a broker's clock is wrong.
_CLOCKS_DIFFER_MS = 60_000


class Merged(NamedTuple):
    """The merged entries of a group."""

    entries: list[HistoryEntry]
    notes: list[str]  # how much the log explains, and contradictions


@dataclass(slots=True)
class _Round:
    """A rebalance of a classic group."""

    opening: HistoryEntry
    lead: list[HistoryEntry] = field(default_factory=list)  # the causes
    middle: list[HistoryEntry] = field(default_factory=list)
    forming: HistoryEntry | None = None
    is_assigned: bool = False  # the generation has its assignment, so there must be a record of it

    @property
    def before(self) -> list[HistoryEntry]:
        """The entries before the generation was formed."""
        return [*self.lead, self.opening, *self.middle]

    def members(self, type_: EntryType) -> dict[str, HistoryEntry]:
        """Return the entries of this type by member."""
        return {
            entry.member_id: entry
            for entry in (*self.lead, *self.middle)
            if entry.type is type_ and entry.member_id is not None
        }


def merge(recorded: Sequence[HistoryEntry], logged: Sequence[HistoryEntry]) -> Merged:
    """Merge the entries of one group: `recorded` from its records, `logged` from the log.

    Both are in order, and `recorded` has at least one entry.
    """
    return _Merge(logged).of(recorded)


class _Merge:
    """The merge of one group, rebalance by rebalance."""

    def __init__(self, logged: Sequence[HistoryEntry]) -> None:
        self._rounds = [part for part in _parts(logged) if isinstance(part, _Round)]
        self._gone = [entry for entry in logged if entry.type is _REMOVED and entry.group_type in BY_EPOCHS]
        self._used: set[int] = set()
        self._found = self._of = 0  # changes that the log explains, of `_of`
        self._contradictions: list[str] = []
        self._differ_ms = 0
        self._entries: list[HistoryEntry] = []
        self._last: HistoryEntry | None = None  # last entry from the records in `_entries`

    def of(self, recorded: Sequence[HistoryEntry]) -> Merged:
        for part in _parts(recorded):
            if isinstance(part, _Round):
                self._append(self._explained(part), part.before[0], part.forming or part.before[-1])
            elif part.type is EntryType.GROUP_EPOCH_BUMPED:
                self._append([self._bump(part)], part, part)
            else:
                self._append([self._with_broker_reason(part)], part, part)
        self._append(self._under_way(recorded[-1]), None, None)
        self._note_missing(recorded)
        return Merged(self._entries, list(self._notes()))

    def _append(
        self, entries: Iterable[HistoryEntry], first: HistoryEntry | None, last: HistoryEntry | None
    ) -> None:
        """Append entries, with new sequence numbers, instead of the recorded ones from `first` to `last`."""
        before = self._entries[-1] if self._entries else None
        if before is not None and first is not None and first.incarnation != before.incarnation:
            before = None
        missing = 0
        if first is not None:
            missing = first.seq - 1 - (0 if before is None or self._last is None else self._last.seq)
        entries = list(entries)
        if before is not None and entries and before.type is EntryType.GROUP_CREATED:
            before = self._entries[-1] = replace(before, at_ms=min(before.at_ms, entries[0].at_ms))
        seq, at_ms = (0, 0) if before is None else (before.seq, before.at_ms)
        for number, entry in enumerate(entries, seq + missing + 1):
            at_ms = max(at_ms, entry.at_ms)
            self._entries.append(replace(entry, seq=number, at_ms=at_ms))
        self._last = last

    def _with_broker_reason(self, entry: HistoryEntry) -> HistoryEntry:
        if entry.group_type not in BY_EPOCHS or entry.type is not _REMOVED:
            return entry
        self._of += 1
        near = [gone for gone in self._gone if gone.member_id == entry.member_id]
        nearest = min(near, key=lambda gone: abs(gone.at_ms - entry.at_ms), default=None)
        if nearest is None:
            return entry
        self._gone.remove(nearest)
        self._found += 1
        self._note_clock(nearest.at_ms - entry.at_ms)
        reason = _with_clues(nearest.reason, [last_commit_in(entry.reason)])
        return replace(entry, rule=nearest.rule, reason=reason, client_reason=nearest.client_reason)

    def _bump(self, bump: HistoryEntry) -> HistoryEntry:
        led = [entry for entry in self._entries if entry.cause == bump.cause and entry.type in OF_MEMBERS]
        words = [entry.reason for entry in led if entry.type is _REMOVED and not entry.rule.startswith("OB")]
        if not words:
            return bump
        others = [bump.reason] if len(words) < len(led) else []
        return replace(bump, reason="; ".join([*dict.fromkeys(words), *others]))

    def _explained(self, recorded: _Round) -> list[HistoryEntry]:
        forming = recorded.forming
        if forming is None:
            return recorded.before
        self._of += 1
        chain = self._chain(recorded, forming)
        if not chain:
            return [*recorded.before, forming]
        self._found += 1
        last = chain[-1].forming
        assert last is not None
        shift_ms = forming.at_ms - last.at_ms
        self._note_clock(-shift_ms)
        known = {entry.member_id: entry for entry in (*recorded.lead, *recorded.middle)}
        logged = [entry for part in chain for entry in (*_with_commits(part, known, shift_ms), part.forming)][
            :-1
        ]
        entries = [_placed(entry, known, recorded.opening, shift_ms) for entry in logged if entry is not None]
        named = {(entry.type, entry.member_id) for entry in entries}
        entries += [
            replace(entry, at_ms=forming.at_ms)
            for entry in (*recorded.lead, *recorded.middle)
            if not named
            & {
                (entry.type, entry.member_id),
                *((type_, entry.member_id) for type_ in _SAME.get(entry.type, ())),
            }
        ]
        self._contradict(forming, last, entries)
        return [*entries, forming]

    def _chain(self, recorded: _Round, forming: HistoryEntry) -> list[_Round]:
        """Return the log's rebalance that formed this generation, after the rebalances that it superseded."""
        differ_ms = {
            place: abs(part.forming.at_ms - forming.at_ms)
            for place, part in enumerate(self._rounds)
            if part.forming is not None
            and part.forming.generation == forming.generation
            and place not in self._used
        }
        if not differ_ms:
            return []
        first = last = min(differ_ms, key=lambda place: differ_ms[place])
        while (
            first
            and (before := self._rounds[first - 1].forming) is not None
            and recorded.opening.generation < before.generation == self._rounds[first].opening.generation
        ):
            first -= 1
        self._used.update(range(first, last + 1))
        return self._rounds[first : last + 1]

    def _contradict(
        self, forming: HistoryEntry, logged: HistoryEntry, entries: Iterable[HistoryEntry]
    ) -> None:
        generation = f"generation {forming.generation}"
        members = set(forming.members or ())
        last = {
            entry.member_id: entry.type
            for entry in entries
            if entry.type in (_ADDED, _REMOVED) and entry.member_id
        }
        for member_id, type_ in last.items():
            if type_ is _REMOVED and member_id in members:
                text = f"{generation}: {member_id} was removed in the log, but is in the record"
                self._contradictions.append(text)
            elif type_ is _ADDED and member_id not in members:
                text = f"{generation}: {member_id} was added in the log, but is not in the record"
                self._contradictions.append(text)
        if forming.type is not logged.type:
            self._contradictions.append(
                f"{generation}: {logged.type} in the log, {forming.type} in the record"
            )
        elif logged.members is not None and len(logged.members) != len(members):
            numbers = f"{counted(len(logged.members), 'member')} in the log, {len(members)} in the record"
            self._contradictions.append(f"{generation}: {numbers}")

    def _under_way(self, last: HistoryEntry) -> list[HistoryEntry]:
        """Return the entries of a rebalance that began after the last record."""
        place = next(
            (n for n, part in enumerate(self._rounds) if n not in self._used and part is self._rounds[-1]),
            None,
        )
        if place is None or last.group_type in BY_EPOCHS:
            return []
        rest = self._rounds[place]
        if rest.is_assigned or rest.opening.generation != last.generation or rest.opening.at_ms < last.at_ms:
            return []
        self._used.add(place)
        entries = [*rest.before, *([rest.forming] if rest.forming is not None else [])]
        return [replace(entry, incarnation=last.incarnation) for entry in entries]

    def _note_missing(self, recorded: Sequence[HistoryEntry]) -> None:
        missing = [
            f"{part.forming.generation}"
            for place, part in enumerate(self._rounds)
            if place not in self._used
            and part.is_assigned
            and part.forming is not None
            and recorded[0].at_ms < part.forming.at_ms < recorded[-1].at_ms
        ]
        if missing:
            self._contradictions.append(
                f"the log has generation {listed(missing, 'generation')}, but no record of it is left"
            )

    def _note_clock(self, differ_ms: int) -> None:
        if abs(differ_ms) > abs(self._differ_ms):
            self._differ_ms = differ_ms

    def _notes(self) -> Iterator[str]:
        yield f"the broker log explains {self._found} of {counted(self._of, 'change')} in the records"
        if abs(self._differ_ms) > _CLOCKS_DIFFER_MS:
            differ = f"{abs(self._differ_ms) / 1000:.0f} s {'ahead of' if self._differ_ms > 0 else 'behind'}"
            yield (
                f"CONTRADICTION: the log's times are {differ} the records', "
                "whose times are shown: is --log-timezone right?"
            )
        if self._contradictions:
            yield f"CONTRADICTION: {listed(self._contradictions, 'contradiction')}"


def _with_commits(
    part: _Round, known: Mapping[str | None, HistoryEntry], shift_ms: int
) -> Iterator[HistoryEntry]:
    for entry in part.before:
        about = part.lead if entry is part.opening else [entry]
        removals = [known.get(one.member_id) for one in about if one.type is _REMOVED]
        # A removal's reason gets the time of the member's last commit, which only the records have.
        at_ms = entry.at_ms + shift_ms
        clues = [
            last_commit_in(removal.reason, removal.at_ms - at_ms)
            for removal in removals
            if removal is not None
        ]
        yield replace(entry, reason=_with_clues(entry.reason, clues))


def _with_clues(reason: str, clues: Iterable[str]) -> str:
    found = [clue for clue in dict.fromkeys(clues) if clue]
    return "; ".join([reason.rstrip("."), *found]) if found else reason


def _placed(
    entry: HistoryEntry, known: Mapping[str | None, HistoryEntry], opening: HistoryEntry, shift_ms: int
) -> HistoryEntry:
    """Return an entry of the log with the records' details and clock."""
    of_record = known.get(entry.member_id)
    details = {
        name: getattr(of_record, name)
        for name in (() if of_record is None else _FROM_RECORDS)
        if getattr(entry, name) is None
    }
    return replace(
        entry,
        at_ms=entry.at_ms + shift_ms,
        incarnation=opening.incarnation,
        last_rebalance_at_ms=opening.last_rebalance_at_ms,
        **details,
    )


def _parts(entries: Iterable[HistoryEntry]) -> Iterator[_Round | HistoryEntry]:
    """Yield the rebalances of classic groups, and single entries outside of them."""
    lead: list[HistoryEntry] = []
    current: _Round | None = None
    last: _Round | None = None
    for entry in entries:
        if entry.type is EntryType.PREPARING_REBALANCE:
            before = lead if current is None else current.middle
            own = [other for other in before if other.cause == entry.cause]
            before[:] = [other for other in before if other.cause != entry.cause]
            yield from before if current is None else (current,)
            current, lead = _Round(entry, own), []
        elif current is not None and entry.type in _FORMS:
            current.forming, current.is_assigned = entry, entry.type is EntryType.EMPTY
            yield current
            current, last = None, current
        elif current is not None:
            current.middle.append(entry)
        elif entry.type in OF_MEMBERS and entry.group_type not in BY_EPOCHS:
            lead.append(entry)
        else:
            if entry.type is EntryType.STABLE and last is not None:
                last.is_assigned = True
            yield from lead
            lead = []
            yield entry
    yield from lead
    if current is not None:
        yield current
