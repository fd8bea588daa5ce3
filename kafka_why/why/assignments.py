"""The assignments in a group's history, each decoded once."""

from collections.abc import Mapping
from typing import TypeAlias

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.protocols.consumer_protocol import ProtocolError, decode_assignment
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition

Partitions: TypeAlias = frozenset[TopicPartition]
Holdings: TypeAlias = Mapping[MemberId, Partitions]
Numbers: TypeAlias = Mapping[MemberId, int]


def read_holdings(assignments: Mapping[MemberId, bytes]) -> Holdings | None:
    """Return one assignment; None if one member's bytes are not of Kafka's consumer."""
    try:
        return {member_id: _decoded(data) for member_id, data in assignments.items()}
    except ProtocolError:
        return None


def _decoded(data: bytes) -> Partitions:
    """Empty bytes are no partitions. Raises ProtocolError."""
    return frozenset(decode_assignment(data).partitions if data else ())


class Assignments:
    """Reads what leaders assigned, in the order of the history.

    Bytes that are in the assignment before too are not decoded again: they give the same object. What stays
    in memory are the partitions of one assignment, and the numbers of all.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, Partitions] = {}
        self._numbers: dict[tuple[str, int], Numbers | None] = {}

    def holdings(self, entry: HistoryEntry) -> Holdings | None:
        """Return the assignment of an entry; None if one member's bytes are not of Kafka's consumer, or the
        entry has no assignment. Empty bytes are no partitions.
        """
        if entry.assignments is None:
            return None
        try:
            found = self._read(entry.assignments)
        except ProtocolError:
            found = None
        numbers = None if found is None else {member_id: len(held) for member_id, held in found.items()}
        self._numbers[entry.incarnation, entry.seq] = numbers
        return found

    def numbers(self, entry: HistoryEntry) -> Numbers | None:
        """Return how many partitions of an entry each member has; None where `holdings` returns None."""
        name = entry.incarnation, entry.seq
        if name not in self._numbers:
            self.holdings(entry)
        return self._numbers.get(name)

    def _read(self, assignments: Mapping[MemberId, bytes]) -> Holdings:
        """Raises ProtocolError."""
        before, self._last = self._last, {}
        found: dict[MemberId, Partitions] = {}
        for member_id, data in assignments.items():
            held = self._last.get(data)
            if held is None:
                held = before.get(data)
            if held is None:
                held = _decoded(data)
            self._last[data] = found[member_id] = held
        return found
