"""A life divided where the group changed its protocol: a phase is classic or goes by epochs."""

from itertools import groupby

from kafka_why.contract.kafka.history import BY_EPOCHS, HistoryEntry
from kafka_why.why.incarnations import IncarnationHistory


def phases(life: IncarnationHistory[HistoryEntry]) -> list[tuple[bool, IncarnationHistory[HistoryEntry]]]:
    """Return the phases in order, and whether each goes by epochs, as those of consumer, share and streams
    groups do. A conversion is the first entry of its phase.
    """
    found: list[tuple[bool, IncarnationHistory[HistoryEntry]]] = []
    before = life.begins_after
    for group_type, entries in groupby(life.entries, lambda entry: entry.group_type):
        part = IncarnationHistory(life.incarnation, tuple(entries), life.missing, life.unread, before)
        before = part.entries[-1].seq
        found.append((group_type in BY_EPOCHS, part))
    return found
