"""A life divided where rebalances begin and end: calm segments of entries and rebalances, alternating."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kafka_why.contract.kafka.history import EntryType, GroupState, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.incarnations import IncarnationHistory
from kafka_why.why.model import Joined, RebalanceOutcome, Removed

_REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_FORMS_GENERATION = (EntryType.COMPLETING_REBALANCE, EntryType.EMPTY)
_ENDS = {EntryType.STABLE: RebalanceOutcome.STABLE, EntryType.EMPTY: RebalanceOutcome.EMPTY}


JOINS = (EntryType.MEMBER_ADDED, EntryType.MEMBER_REJOINED, EntryType.MEMBER_REPLACED)
REMOVALS = (EntryType.MEMBER_REMOVED, EntryType.PENDING_MEMBER_REMOVED)


def first_of_each(
    entries: Iterable[HistoryEntry], types: Sequence[EntryType]
) -> dict[MemberId, HistoryEntry]:
    """Return the first entry of these types of each member."""
    found: dict[MemberId, HistoryEntry] = {}
    for event in entries:
        if event.type in types and event.member_id is not None:
            found.setdefault(event.member_id, event)
    return found


def joined_in(entries: Iterable[HistoryEntry], began_ms: int) -> list[Joined]:
    """Return the members that joined in a rebalance."""
    joins = first_of_each(entries, JOINS)
    return [Joined(member_id, max(0, event.at_ms - began_ms)) for member_id, event in joins.items()]


def removed_in(entries: Iterable[HistoryEntry], began_ms: int) -> list[Removed]:
    """Return the members that were removed in a rebalance."""
    removals = first_of_each(entries, REMOVALS)
    return [
        Removed(member_id, max(0, event.at_ms - began_ms), event.reason, event.client_reason)
        for member_id, event in removals.items()
    ]


@dataclass(slots=True)
class Segment:
    """Entries that belong together. `outcome` is None while the group is calm.

    `lead`: the entries of the same request or deadline just before the rebalance. `opening` is None if the
    beginning is not in the history. `gap`: entries are missing before or in the segment.
    """

    outcome: RebalanceOutcome | None = None
    gap: bool = False
    lead: list[HistoryEntry] = field(default_factory=list)
    opening: HistoryEntry | None = None
    entries: list[HistoryEntry] = field(default_factory=list)
    ended_ms: int | None = None

    @property
    def is_begin_known(self) -> bool:
        """Whether the history has the time of the beginning. The cluster's own coordinator does not write it,
        so it is known if the group was seen rebalancing.
        """
        opening = self.opening
        return opening is not None and (not opening.observed or opening.within_ms is not None)

    @property
    def began_ms(self) -> int:
        return (self.opening or self.entries[0]).at_ms

    @property
    def all_entries(self) -> list[HistoryEntry]:
        """Return those of the lead and the others."""
        return [*self.lead, *self.entries]

    @property
    def forming(self) -> HistoryEntry | None:
        """Return the entry with the new generation, None if there is none."""
        return next((e for e in self.entries if e.type in _FORMS_GENERATION), None)

    def end(self, outcome: RebalanceOutcome, at_ms: int | None = None) -> None:
        if self.outcome is not None:
            self.outcome, self.ended_ms = outcome, at_ms


def segments(life: IncarnationHistory[HistoryEntry]) -> list[Segment]:
    """Return all entries of the life as segments. A last rebalance without an end is UNDER_WAY."""
    return [segment for segment in _cut(life) if segment.entries]


def generation_before(event: HistoryEntry) -> int:
    """Return the generation of the group before an entry's change."""
    return event.generation - (event.type in _FORMS_GENERATION)


def _cut(life: IncarnationHistory[HistoryEntry]) -> Iterator[Segment]:
    current = Segment()
    last: HistoryEntry | None = None
    for event in life.entries:
        expected = 1 + (last.seq if last is not None else life.begins_after)
        if event.seq != expected and not _is_unread(life, last, event):
            if last is None or not _continues(last, event):
                current.end(RebalanceOutcome.UNKNOWN)
                yield current
                current = Segment(RebalanceOutcome.UNDER_WAY if event.from_state in _REBALANCING else None)
            current.gap = True
        if event.type is EntryType.PREPARING_REBALANCE:
            lead = _pop_lead(current, event)
            current.end(RebalanceOutcome.SUPERSEDED, event.at_ms)
            yield current
            current = Segment(
                RebalanceOutcome.UNDER_WAY, current.gap and not current.entries, lead, opening=event
            )
        current.entries.append(event)
        if event.type in _ENDS or event.type is EntryType.GROUP_DELETED:
            current.end(_ENDS.get(event.type, RebalanceOutcome.UNKNOWN), event.at_ms)
            yield current
            current = Segment()
        last = event
    yield current


def _is_unread(
    life: IncarnationHistory[HistoryEntry], last: HistoryEntry | None, event: HistoryEntry
) -> bool:
    """Whether the entries between these two were not read because nothing depends on them."""
    return last is not None and life.unread.issuperset(range(last.seq + 1, event.seq))


def _continues(last: HistoryEntry, event: HistoryEntry) -> bool:
    """Whether the group can have stayed as it was while entries are missing."""
    return (last.to_state, last.generation) == (event.from_state, generation_before(event))


def _pop_lead(segment: Segment, opening: HistoryEntry) -> list[HistoryEntry]:
    """Move the entries of the opening's request or deadline out of the segment that ends."""
    lead: list[HistoryEntry] = []
    while (
        segment.entries
        and segment.entries[-1].cause == opening.cause
        and len(lead) + 1 == (opening.seq - segment.entries[-1].seq)
    ):
        lead.insert(0, segment.entries.pop())
    return lead
