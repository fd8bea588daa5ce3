"""Merges two kinds of evidence about one group: its records on `__consumer_offsets`, and its lines in
brokers' logs.

The records have generations, members and assignments; the lines have the times at which rebalances began, and
their reasons. Rebalances of a classic group are matched by generation. Entries about the beginning of a
rebalance and about members are only inferred from the records, so the log's entries replace them. Times are
converted to the records' clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from kafka_why.broker_log.group import OF_MEMBERS
from kafka_why.contract.kafka.history import BY_EPOCHS, EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import counted, last_commit_in, listed

_FORMING = (EntryType.COMPLETING_REBALANCE, EntryType.EMPTY)  # entries about a new generation
_REMOVED, _ADDED = EntryType.MEMBER_REMOVED, EntryType.MEMBER_ADDED
# The records show a member that expired and came back as new or returned; the lines show both steps.
_JOINS = (_ADDED, EntryType.MEMBER_REPLACED, EntryType.MEMBER_REJOINED)
_OBSERVED_RULES = "OB"  # the prefix of the rules by which entries are inferred from records
# Details that a log entry gets from the records if its line lacks them.
_FROM_RECORDS = ("client_id", "client_host", "group_instance_id")
# A greater difference means that the time zone or a broker's clock is wrong.
_CLOCKS_DIFFER_S = 60


class Merged(NamedTuple):
    """The merged entries of a group."""

    entries: list[HistoryEntry]
    notes: list[str]  # how much the log explains, and contradictions


@dataclass(slots=True)
class _Rebalance:
    """A rebalance of a classic group: its entries are `causes`, `opening`, `middle` and `forming`."""

    opening: HistoryEntry  # PreparingRebalance
    causes: list[HistoryEntry] = field(default_factory=list)  # changes of members that began the rebalance
    middle: list[HistoryEntry] = field(default_factory=list)  # between `opening` and `forming`
    # The entry about the new generation, CompletingRebalance or Empty. None until the generation is formed.
    forming: HistoryEntry | None = None
    is_assigned: bool = False  # the generation was assigned or is empty, so Kafka has written a record of it

    @property
    def before_forming(self) -> list[HistoryEntry]:
        """The entries before the generation was formed."""
        return [*self.causes, self.opening, *self.middle]


def merge(recorded: Sequence[HistoryEntry], logged: Sequence[HistoryEntry]) -> Merged:
    """Merge the entries of one group: `recorded` from its records, `logged` from the log.

    Both are in order, and `recorded` has at least one entry.
    """
    return _Merge(logged).merge_records(recorded)


class _Merge:
    """The merge of one group, rebalance by rebalance."""

    def __init__(self, logged: Sequence[HistoryEntry]) -> None:
        self._logged_rebalances = [part for part in _parts(logged) if isinstance(part, _Rebalance)]
        # The log's removals of members from a group with epochs that are not matched with a record yet.
        self._unmatched_removals = [e for e in logged if e.type is _REMOVED and e.group_type in BY_EPOCHS]
        self._matched: set[int] = set()  # indexes of rebalances in `_logged_rebalances` that are merged
        self._changes = self._explained = 0  # changes in the records, and how many the log explains
        self._contradictions: list[str] = []
        self._clock_difference_ms = 0  # the greatest; positive if the log's clock is ahead
        self._entries: list[HistoryEntry] = []
        self._last_replaced: HistoryEntry | None = None  # the last recorded entry that `_entries` covers

    def merge_records(self, recorded: Sequence[HistoryEntry]) -> Merged:
        """Merge the entries from the records with the log's entries."""
        for part in _parts(recorded):
            if isinstance(part, _Rebalance):
                first, last = part.before_forming[0], part.forming or part.before_forming[-1]
                self._append(self._merge_rebalance(part), first_replaced=first, last_replaced=last)
            elif part.type is EntryType.GROUP_EPOCH_BUMPED:
                bump = self._with_broker_reasons_of_epoch(part)
                self._append([bump], first_replaced=part, last_replaced=part)
            else:
                entry = self._with_broker_reason(part)
                self._append([entry], first_replaced=part, last_replaced=part)
        self._append(self._rebalance_under_way(recorded[-1]))
        self._note_missing(recorded)
        return Merged(self._entries, list(self._notes()))

    def _append(
        self,
        entries: Iterable[HistoryEntry],
        *,
        first_replaced: HistoryEntry | None = None,
        last_replaced: HistoryEntry | None = None,
    ) -> None:
        """Append `entries` in place of the recorded ones from `first_replaced` to `last_replaced`.

        If both are None, `entries` follow all recorded ones. The sequence numbers are new, but have the gaps
        that the recorded ones have. No entry is earlier than the one before it.
        """
        previous = self._entries[-1] if self._entries else None
        if previous is not None and first_replaced is not None:
            previous = previous if previous.incarnation == first_replaced.incarnation else None
        last_recorded_seq = 0 if previous is None or self._last_replaced is None else self._last_replaced.seq
        missing_count = 0 if first_replaced is None else first_replaced.seq - 1 - last_recorded_seq
        entries = list(entries)
        # A group was created no later than its next entry.
        if previous is not None and entries and previous.type is EntryType.GROUP_CREATED:
            previous = self._entries[-1] = replace(previous, at_ms=min(previous.at_ms, entries[0].at_ms))
        previous_seq, at_ms = (0, 0) if previous is None else (previous.seq, previous.at_ms)
        for seq, entry in enumerate(entries, previous_seq + missing_count + 1):
            at_ms = max(at_ms, entry.at_ms)
            self._entries.append(replace(entry, seq=seq, at_ms=at_ms))
        self._last_replaced = last_replaced

    def _with_broker_reason(self, entry: HistoryEntry) -> HistoryEntry:
        """Return the entry. If a member is removed from a group with epochs, it has the log's reason.

        Of several removals of this member in the log, the reason is that of the nearest in time.
        """
        if entry.group_type not in BY_EPOCHS or entry.type is not _REMOVED:
            return entry
        self._changes += 1
        removals = [removal for removal in self._unmatched_removals if removal.member_id == entry.member_id]
        nearest = min(removals, key=lambda removal: abs(removal.at_ms - entry.at_ms), default=None)
        if nearest is None:
            return entry
        self._unmatched_removals.remove(nearest)
        self._explained += 1
        self._note_clock(nearest.at_ms - entry.at_ms)
        reason = _with_last_commits(nearest.reason, [last_commit_in(entry.reason)])
        return replace(entry, rule=nearest.rule, reason=reason, client_reason=nearest.client_reason)

    def _with_broker_reasons_of_epoch(self, bump: HistoryEntry) -> HistoryEntry:
        """Return a new epoch's entry with the log's reasons of the removals that caused it."""
        causes = [entry for entry in self._entries if entry.cause == bump.cause and entry.type in OF_MEMBERS]
        broker_reasons = [
            entry.reason
            for entry in causes
            # A removal that the log explains has a rule of a coordinator.
            if entry.type is _REMOVED and not entry.rule.startswith(_OBSERVED_RULES)
        ]
        if not broker_reasons:
            return bump
        inferred_reasons = [bump.reason] if len(broker_reasons) < len(causes) else []
        return replace(bump, reason="; ".join([*dict.fromkeys(broker_reasons), *inferred_reasons]))

    def _merge_rebalance(self, recorded: _Rebalance) -> list[HistoryEntry]:
        """Return the log's entries of a recorded rebalance, and the changes that only the record has."""
        forming = recorded.forming
        if forming is None:
            return recorded.before_forming
        self._changes += 1
        chain = self._find_logged_chain(recorded, forming)
        if not chain:
            return [*recorded.before_forming, forming]
        self._explained += 1
        logged_forming = chain[-1].forming
        assert logged_forming is not None
        shift_ms = forming.at_ms - logged_forming.at_ms  # converts the log's times to the records' clock
        self._note_clock(-shift_ms)
        changes = [*recorded.causes, *recorded.middle]
        record_of = {entry.member_id: entry for entry in changes}
        logged = [
            entry for part in chain for entry in (*_with_commits(part, record_of, shift_ms), part.forming)
        ]
        entries = [
            _with_record(entry, record_of, recorded.opening, shift_ms)
            for entry in logged
            if entry is not None and entry is not logged_forming
        ]
        in_log = {(entry.type, entry.member_id) for entry in entries}
        entries += [
            replace(entry, at_ms=forming.at_ms)
            for entry in changes
            if in_log.isdisjoint((type_, entry.member_id) for type_ in _equivalent_types(entry.type))
        ]
        self._note_contradictions(forming, logged_forming, entries)
        return [*entries, forming]

    def _find_logged_chain(self, recorded: _Rebalance, forming: HistoryEntry) -> list[_Rebalance]:
        """Return the log's rebalance that formed this generation, after the rebalances that it superseded.

        A superseded rebalance left no record. Return [] if the log does not have this generation.
        """
        distance_ms = {  # by index of a logged rebalance with this generation
            index: abs(part.forming.at_ms - forming.at_ms)
            for index, part in enumerate(self._logged_rebalances)
            if part.forming is not None
            and part.forming.generation == forming.generation
            and index not in self._matched
        }
        if not distance_ms:
            return []
        first = last = min(distance_ms, key=lambda index: distance_ms[index])
        while first > 0:
            superseded = self._logged_rebalances[first - 1].forming
            if superseded is None:
                break
            if superseded.generation != self._logged_rebalances[first].opening.generation:
                break
            if superseded.generation <= recorded.opening.generation:  # the records have it, too
                break
            first -= 1
        self._matched.update(range(first, last + 1))
        return self._logged_rebalances[first : last + 1]

    def _note_contradictions(
        self, forming: HistoryEntry, logged: HistoryEntry, entries: Iterable[HistoryEntry]
    ) -> None:
        """Note contradictions between `forming` from the records and `logged`, the log's entry about it.

        `entries` are the log's entries before it. The last change of each member counts.
        """
        generation = f"generation {forming.generation}"
        members = set(forming.members or ())
        last_change = {
            entry.member_id: entry.type
            for entry in entries
            if entry.type in (_ADDED, _REMOVED) and entry.member_id
        }
        for member_id, type_ in last_change.items():
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

    def _rebalance_under_way(self, last: HistoryEntry) -> list[HistoryEntry]:
        """Return the entries of a rebalance that began after the last record, or [] if there is none."""
        index = len(self._logged_rebalances) - 1
        if index < 0 or index in self._matched or last.group_type in BY_EPOCHS:
            return []
        open_one = self._logged_rebalances[index]
        if open_one.is_assigned or open_one.opening.generation != last.generation:
            return []
        if open_one.opening.at_ms < last.at_ms:
            return []
        self._matched.add(index)
        entries = open_one.before_forming
        if open_one.forming is not None:
            entries.append(open_one.forming)
        return [replace(entry, incarnation=last.incarnation) for entry in entries]

    def _note_missing(self, recorded: Sequence[HistoryEntry]) -> None:
        """Note the log's generations within the time of the records that no record has."""
        missing = [
            f"{part.forming.generation}"
            for index, part in enumerate(self._logged_rebalances)
            if index not in self._matched
            and part.is_assigned
            and part.forming is not None
            and recorded[0].at_ms < part.forming.at_ms < recorded[-1].at_ms
        ]
        if missing:
            self._contradictions.append(
                f"the log has generation {listed(missing, 'generation')}, but no record of it is left"
            )

    def _note_clock(self, log_ahead_ms: int) -> None:
        if abs(log_ahead_ms) > abs(self._clock_difference_ms):
            self._clock_difference_ms = log_ahead_ms

    def _notes(self) -> Iterator[str]:
        changes = counted(self._changes, "change")
        yield f"the broker log explains {self._explained} of {changes} in the records"
        difference_s = abs(self._clock_difference_ms) / 1000
        if difference_s > _CLOCKS_DIFFER_S:
            direction = "ahead of" if self._clock_difference_ms > 0 else "behind"
            yield (
                f"CONTRADICTION: the log's times are {difference_s:.0f} s {direction} the records', "
                "whose times are shown: is --log-timezone right?"
            )
        if self._contradictions:
            yield f"CONTRADICTION: {listed(self._contradictions, 'contradiction')}"


def _with_commits(
    part: _Rebalance, record_of: Mapping[str | None, HistoryEntry], shift_ms: int
) -> Iterator[HistoryEntry]:
    """Yield the log's entries before the generation, with the last commits of removed members in the reasons.

    Only the records have commits. `record_of` has the recorded change of each member.
    """
    for entry in part.before_forming:
        changes = part.causes if entry is part.opening else [entry]
        removals = [record_of.get(change.member_id) for change in changes if change.type is _REMOVED]
        at_ms = entry.at_ms + shift_ms
        last_commits = [
            last_commit_in(removal.reason, removal.at_ms - at_ms)
            for removal in removals
            if removal is not None
        ]
        yield replace(entry, reason=_with_last_commits(entry.reason, last_commits))


def _with_last_commits(reason: str, last_commits: Iterable[str]) -> str:
    """Return the reason, followed by the texts about last commits that are not empty."""
    texts = [text for text in dict.fromkeys(last_commits) if text]
    return "; ".join([reason.rstrip("."), *texts]) if texts else reason


def _with_record(
    entry: HistoryEntry, record_of: Mapping[str | None, HistoryEntry], opening: HistoryEntry, shift_ms: int
) -> HistoryEntry:
    """Return an entry of the log with the records' details and clock."""
    recorded = record_of.get(entry.member_id, entry)
    details = {name: getattr(recorded, name) for name in _FROM_RECORDS if getattr(entry, name) is None}
    return replace(
        entry,
        at_ms=entry.at_ms + shift_ms,
        incarnation=opening.incarnation,
        last_rebalance_at_ms=opening.last_rebalance_at_ms,
        **details,
    )


def _equivalent_types(recorded: EntryType) -> tuple[EntryType, ...]:
    """Return the types that the log may have for a recorded entry of this type."""
    return _JOINS if recorded in _JOINS else (recorded,)


def _parts(entries: Iterable[HistoryEntry]) -> Iterator[_Rebalance | HistoryEntry]:
    """Yield the rebalances of classic groups, and single entries outside of them."""
    pending: list[HistoryEntry] = []  # about members; perhaps causes of the next rebalance
    current: _Rebalance | None = None  # its generation is not formed yet
    last_formed: _Rebalance | None = None
    for entry in entries:
        if entry.type is EntryType.PREPARING_REBALANCE:
            candidates = pending if current is None else current.middle
            causes = [other for other in candidates if other.cause == entry.cause]
            candidates[:] = [other for other in candidates if other.cause != entry.cause]
            yield from pending
            if current is not None:  # superseded
                yield current
            current, pending = _Rebalance(entry, causes), []
        elif current is not None and entry.type in _FORMING:
            current.forming, current.is_assigned = entry, entry.type is EntryType.EMPTY
            yield current
            current, last_formed = None, current
        elif current is not None:
            current.middle.append(entry)
        elif entry.type in OF_MEMBERS and entry.group_type not in BY_EPOCHS:
            pending.append(entry)
        else:
            if entry.type is EntryType.STABLE and last_formed is not None:
                last_formed.is_assigned = True
            yield from pending
            pending = []
            yield entry
    yield from pending
    if current is not None:
        yield current
