"""A life divided where the group changed its protocol: a phase is classic or of the consumer protocol."""

from itertools import groupby

from insight.why.incarnations import IncarnationHistory
from state.kafka.history import HistoryEntry

CONSUMER = "consumer"


def phases(life: IncarnationHistory[HistoryEntry]) -> list[tuple[bool, IncarnationHistory[HistoryEntry]]]:
    """Return the phases in order, and whether each is of the consumer protocol. A conversion is the first
    entry of its phase.
    """
    found: list[tuple[bool, IncarnationHistory[HistoryEntry]]] = []
    before = life.begins_after
    for group_type, entries in groupby(life.entries, lambda entry: entry.group_type):
        part = IncarnationHistory(life.incarnation, tuple(entries), life.missing, life.unread, before)
        before = part.entries[-1].seq
        found.append((group_type == CONSUMER, part))
    return found
