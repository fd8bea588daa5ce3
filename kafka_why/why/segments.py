"""Divides a history into the group's incarnations or "lives", each from its creation to its deletion, and a
life into segments: one for each rebalance, and one for the entries between two rebalances.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, TypeVar
from uuid import UUID

from msgspec import structs

from kafka_why.contract.history_reader import AnyHistoryEntry, HistoryReader
from kafka_why.contract.kafka.history import BY_EPOCHS, STREAMS, EntryType, GroupState, HistoryEntry
from kafka_why.contract.kafka.snapshot import NamedPartitions
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.grouping import grouped
from kafka_why.why.model import Joined, RebalanceOutcome, Removed
from kafka_why.wording import number_list, times

E = TypeVar("E", bound=AnyHistoryEntry)


@dataclass(frozen=True, slots=True)
class IncarnationHistory(Generic[E]):
    """The retained entries of one incarnation, or a part of them, in the order of `seq` (counted from 1)."""

    incarnation: str
    entries: tuple[E, ...]
    missing: tuple[int, ...]  # seqs of lost entries
    # Seqs of entries that were not read, because nothing depends on them.
    unread: frozenset[int] = frozenset()
    begins_after: int = 0  # seq of the last entry before this part, or 0

    @property
    def first_seq(self) -> int:
        """The seq of the first retained entry. It is 1 unless the beginning is missing."""
        return self.entries[0].seq


def by_incarnation(
    history: Iterable[E], unread: Collection[tuple[str, int]] = ()
) -> list[IncarnationHistory[E]]:
    """Return the lives of one group in order.

    `unread` has the (incarnation, seq) of entries that were not read because nothing depends on them.
    """
    reader = HistoryReader(from_start=False)
    entries: dict[str, list[E]] = {}
    group_id = ""  # the same in all entries
    for event in history:
        group_id = event.group_id
        if reader.is_new(event):
            entries.setdefault(event.incarnation, []).append(event)
    unread_seqs = {incarnation: frozenset(seqs) for incarnation, seqs in grouped(unread).items()}
    return [
        IncarnationHistory(
            incarnation,
            tuple(sorted(life_entries, key=lambda event: event.seq)),
            tuple(
                seq
                for seq in reader.gaps.get((group_id, incarnation), ())
                if seq not in unread_seqs.get(incarnation, ())
            ),
            unread_seqs.get(incarnation, frozenset()),
        )
        for incarnation, life_entries in entries.items()
    ]


def phases(life: IncarnationHistory[HistoryEntry]) -> list[tuple[bool, IncarnationHistory[HistoryEntry]]]:
    """Divide a life into phases of one group type. Each is returned with True if that type has epochs."""
    # The first entry of each later phase is GroupConverted.
    found: list[tuple[bool, IncarnationHistory[HistoryEntry]]] = []
    last_seq = life.begins_after
    for group_type, entries in groupby(life.entries, lambda entry: entry.group_type):
        phase = IncarnationHistory(
            life.incarnation, tuple(entries), life.missing, life.unread, begins_after=last_seq
        )
        last_seq = phase.entries[-1].seq
        found.append((group_type in BY_EPOCHS, phase))
    return found


class TopicNames:
    """The names of deleted topics, by topic id.

    A group forgets the name of a deleted topic, so later entries have the topic's id instead. A name is
    inferred if a member's earlier entry has the same partitions under a name that its later entry lacks.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # such as `orders (deleted)`, by topic id
        self._partitions: dict[MemberId, NamedPartitions] = {}  # of each member, in its last entry

    def replace_ids(self, event: HistoryEntry) -> HistoryEntry:
        """Return the entry with known topic ids replaced by names such as `orders (deleted)`."""
        if event.type is EntryType.MEMBER_RECONCILED and event.member_id is not None:
            self._infer_names(event.member_id, event)
        elif event.type is EntryType.MEMBER_REPLACED and event.member_id is not None:
            self._partitions[event.member_id] = self._partitions.pop(event.replaced_member_id or "", {})
        if not self._names:
            return event
        with_names = {
            field: self._with_names(getattr(event, field)) for field in ("assigned", "revoking", "awaiting")
        }
        targets = event.targets
        if targets is not None:
            targets = {
                member_id: self._with_names(partitions) or {} for member_id, partitions in targets.items()
            }
        return structs.replace(event, **with_names, targets=targets)

    def _infer_names(self, member_id: MemberId, event: HistoryEntry) -> None:
        """Infer the names of topic ids that are new in a member's MemberReconciled entry."""
        before, after = self._partitions.get(member_id, {}), {**(event.assigned or {})}
        for topic, numbers in (event.revoking or {}).items():
            after[topic] = sorted({*after.get(topic, ()), *numbers})
        missing_names = [topic for topic in before if topic not in after and not _is_id(topic)]
        for topic_id in after.keys() - before.keys() - self._names.keys():
            with_same_partitions = [name for name in missing_names if before[name] == after[topic_id]]
            if len(with_same_partitions) == 1 and _is_id(topic_id):
                self._names[topic_id] = f"{with_same_partitions[0]} (deleted)"
        self._partitions[member_id] = after

    def _with_names(self, partitions: Mapping[str, list[int]] | None) -> NamedPartitions | None:
        if partitions is None:
            return None
        return {self._names.get(topic, topic): numbers for topic, numbers in partitions.items()}


def _is_id(topic: str) -> bool:
    """Return True if `topic` has the form of a topic id. A topic's name may have it, too."""
    try:
        return str(UUID(topic)) == topic
    except ValueError:
        return False


MISSING = "entries are missing"
"""The beginning of the note about gaps."""


def history_notes(group_lives: Sequence[IncarnationHistory[E]], *, from_start: bool = True) -> list[str]:
    """Return the notes about the history of a Kafka or RocketMQ group.

    `from_start` is True if the lives begin with the first retained entry.
    """
    notes = []
    if len(group_lives) > 1:
        notes.append(f"the group ended and was created again: this report covers {len(group_lives)} lives")
    for life in group_lives:
        if life.first_seq > 1 and (from_start or life is not group_lives[0]):
            notes.append(
                f"the history begins at entry {life.first_seq}: {_late_begin_reason(life.entries[0])}"
            )
        if life.missing:
            notes.append(f"{MISSING}: {number_list(life.missing)} of life {life.incarnation}")
        late_requests = sum(event.type == EntryType.APPLIED_LATE for event in life.entries)
        if late_requests:
            notes.append(
                f"{late_requests} requests were applied late, after a deadline that had already fired"
            )
    refused_joins = [e for e in group_lives[-1].entries if e.type == EntryType.JOIN_REFUSED]
    if refused_joins:
        last, number = refused_joins[-1], len(refused_joins)
        notes.append(f"{_refused_request(last)} was refused {times(number)}; the last reason: {last.reason}")
    quarantine_entries = [
        e for e in group_lives[-1].entries if e.type in (EntryType.QUARANTINED, EntryType.RELEASED)
    ]
    if quarantine_entries and quarantine_entries[-1].type == EntryType.QUARANTINED:
        notes.append(
            f"the group is quarantined, so its deadlines do not fire: {quarantine_entries[-1].reason}"
        )
    return notes


def _refused_request(event: AnyHistoryEntry) -> str:
    if isinstance(event, HistoryEntry) and event.group_type == STREAMS:
        return f"a join of {event.client_id} at {event.client_host}"
    return "JoinGroup"


def _late_begin_reason(first: AnyHistoryEntry) -> str:
    is_observed = isinstance(first, HistoryEntry) and first.observed
    return "the group existed before it was observed" if is_observed else "retention deleted the earlier ones"


_REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_FORMS_GENERATION = (EntryType.COMPLETING_REBALANCE, EntryType.EMPTY)  # each makes the generation greater
_ENDS = {EntryType.STABLE: RebalanceOutcome.STABLE, EntryType.EMPTY: RebalanceOutcome.EMPTY}


JOINS = (EntryType.MEMBER_ADDED, EntryType.MEMBER_REJOINED, EntryType.MEMBER_REPLACED)
REMOVALS = (EntryType.MEMBER_REMOVED, EntryType.PENDING_MEMBER_REMOVED)


def first_of_each(
    entries: Iterable[HistoryEntry], types: Sequence[EntryType]
) -> dict[MemberId, HistoryEntry]:
    """Return each member's first entry of these types."""
    found: dict[MemberId, HistoryEntry] = {}
    for event in entries:
        if event.type in types and event.member_id is not None:
            found.setdefault(event.member_id, event)
    return found


def joined_in(entries: Iterable[HistoryEntry], began_ms: int) -> list[Joined]:
    """Return the members that joined, with the times since `began_ms`."""
    joins = first_of_each(entries, JOINS)
    return [Joined(member_id, max(0, event.at_ms - began_ms)) for member_id, event in joins.items()]


def removed_in(entries: Iterable[HistoryEntry], began_ms: int) -> list[Removed]:
    """Return the members that were removed, with the times since `began_ms`."""
    removals = first_of_each(entries, REMOVALS)
    return [
        Removed(member_id, max(0, event.at_ms - began_ms), event.reason, event.client_reason)
        for member_id, event in removals.items()
    ]


@dataclass(slots=True)
class Segment:
    """The entries of one rebalance or, if `outcome` is None, the entries between two rebalances."""

    outcome: RebalanceOutcome | None = None  # UNDER_WAY until `end` is called
    has_gap: bool = False  # entries are missing before or in the segment
    # Entries of the same request or deadline just before `opening`.
    trigger_entries: list[HistoryEntry] = field(default_factory=list)
    # The PreparingRebalance entry; None if the beginning is not in the history.
    opening: HistoryEntry | None = None
    entries: list[HistoryEntry] = field(default_factory=list)
    ended_ms: int | None = None  # None if it has not ended, or the end is unknown

    @property
    def is_begin_known(self) -> bool:
        """True if the history has the time when the rebalance began."""
        opening = self.opening
        # An observed group's entry has the time of the beginning only if polls saw the group rebalance.
        return opening is not None and (not opening.observed or opening.within_ms is not None)

    @property
    def began_ms(self) -> int:
        """The time when the rebalance began, or of the first entry if that is unknown."""
        return (self.opening or self.entries[0]).at_ms

    @property
    def all_entries(self) -> list[HistoryEntry]:
        """The entries of `trigger_entries`, then `entries`."""
        return [*self.trigger_entries, *self.entries]

    @property
    def forming(self) -> HistoryEntry | None:
        """The entry that formed the new generation, or None if none was formed."""
        return next((e for e in self.entries if e.type in _FORMS_GENERATION), None)

    def end(self, outcome: RebalanceOutcome, at_ms: int | None = None) -> None:
        """End the rebalance. Do nothing if the segment is one between two rebalances."""
        if self.outcome is not None:
            self.outcome, self.ended_ms = outcome, at_ms


def segments(life: IncarnationHistory[HistoryEntry]) -> list[Segment]:
    """Return all entries of a life as segments. A last rebalance without an end is UNDER_WAY."""
    return [segment for segment in _split(life) if segment.entries]


def generation_before(event: HistoryEntry) -> int:
    """Return the group's generation before the change in `event`."""
    return event.generation - 1 if event.type in _FORMS_GENERATION else event.generation


def _split(life: IncarnationHistory[HistoryEntry]) -> Iterator[Segment]:
    """Yield the segments, some of them empty.

    A segment begins at each PreparingRebalance entry, after the end of each rebalance, and after a gap in
    which a rebalance may have begun or ended.
    """
    current = Segment()
    last: HistoryEntry | None = None
    for event in life.entries:
        expected_seq = 1 + (last.seq if last is not None else life.begins_after)
        if event.seq != expected_seq and not _is_unread(life, last, event):
            if last is None or not _is_state_unchanged(last, event):
                current.end(RebalanceOutcome.UNKNOWN)
                yield current
                is_rebalancing = event.from_state in _REBALANCING
                current = Segment(RebalanceOutcome.UNDER_WAY if is_rebalancing else None)
            current.has_gap = True
        if event.type is EntryType.PREPARING_REBALANCE:
            trigger_entries = _pop_trigger_entries(current, event)
            current.end(RebalanceOutcome.SUPERSEDED, event.at_ms)
            yield current
            has_gap = current.has_gap and not current.entries  # the gap is directly before `event`
            current = Segment(RebalanceOutcome.UNDER_WAY, has_gap, trigger_entries, opening=event)
        current.entries.append(event)
        if event.type in _ENDS or event.type is EntryType.GROUP_DELETED:
            # A deletion of the group ends a rebalance, too, with an unknown outcome.
            current.end(_ENDS.get(event.type, RebalanceOutcome.UNKNOWN), event.at_ms)
            yield current
            current = Segment()
        last = event
    yield current


def _is_unread(
    life: IncarnationHistory[HistoryEntry], last: HistoryEntry | None, event: HistoryEntry
) -> bool:
    """Return True if the entries between `last` and `event` were left out, because nothing needs them."""
    return last is not None and life.unread.issuperset(range(last.seq + 1, event.seq))


def _is_state_unchanged(last: HistoryEntry, event: HistoryEntry) -> bool:
    """Return True if the group has the same state and generation after `last` and before `event`.

    Then no rebalance began or ended in the entries that are missing between them.
    """
    return (last.to_state, last.generation) == (event.from_state, generation_before(event))


def _pop_trigger_entries(segment: Segment, opening: HistoryEntry) -> list[HistoryEntry]:
    """Remove and return the last entries of `segment` if they have the same trigger as `opening`.

    The trigger is the request or deadline. Only entries directly before `opening`, without a gap, count.
    """
    trigger_entries: list[HistoryEntry] = []
    while segment.entries:
        last = segment.entries[-1]
        following_seq = opening.seq - len(trigger_entries)
        if last.cause != opening.cause or last.seq + 1 != following_seq:
            break
        trigger_entries.insert(0, segment.entries.pop())
    return trigger_entries
