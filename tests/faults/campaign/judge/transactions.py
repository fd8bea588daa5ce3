"""Offsets in transactions, as the requests topic and the clients have them.

A TxnOffsetCommit that was answered without an error is pending until a marker of its producer decides it: the
first one at or behind its position whose epoch is the transaction's. What was committed moves in the order of
the log. docs/protocol.md describes both records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.topics import Request
from tests.faults.campaign.judge.verdicts import Violation

Key = tuple[str, str, int]
"""Group, topic and partition."""
WITH_OWN_EPOCH = 2
"""The version of transactions in which each of them has an epoch of its own (KIP-890)."""


@dataclass(frozen=True)
class Outcomes:
    """What clients know of the offsets that they sent in transactions: those of transactions whose commit, or
    whose abort, was acknowledged. Of the others they know nothing.
    """

    committed: Sequence[tuple[str, int, int]] = ()
    """Group, partition and offset."""
    aborted: Sequence[tuple[str, int, int]] = ()


@dataclass(frozen=True)
class Pending:
    """A TxnOffsetCommit that was acknowledged."""

    request: Request
    offsets: Mapping[Key, int]

    def fate(self, marker: Request) -> bool | None:
        """Return True if the marker commits it, False if it aborts it, or None if it is another's."""
        mine, its = self.request.body, marker.body
        if (mine.producer_id, mine.txn_partition) != (its.producer_id, its.txn_partition):
            return None
        if not its.first_position <= mine.txn_position <= its.txn_position:
            return None
        own_epoch = mine.producer_epoch + (mine.txn_version == WITH_OWN_EPOCH)
        if its.producer_epoch < own_epoch:
            return None
        # A newer epoch is that of an abort by the brokers, or of a transaction after this one.
        return its.committed and its.producer_epoch == own_epoch


@dataclass
class Ledger:
    """What is committed and what is pending, read in the order of the log."""

    current: dict[Key, int] = field(default_factory=dict)
    moved: set[tuple[str, int, int]] = field(default_factory=set)
    """Group, partition and offset of all that ever was committed."""
    _places: dict[Key, tuple[int, int, int]] = field(default_factory=dict)
    _pending: dict[str, list[Pending]] = field(default_factory=dict)
    """By group."""

    def commit(self, key: Key, offset: int, place: tuple[int, int, int]) -> None:
        """Commit the offset of the request at this place, unless a later one is committed."""
        if self._places.get(key, (-1, -1, -1)) < place:
            self.current[key] = offset
            self._places[key] = place
        self.moved.add((key[0], key[2], offset))

    def hold(self, request: Request, offsets: Mapping[Key, int]) -> None:
        """Hold offsets as pending from here on."""
        self._pending.setdefault(request.body.group_id, []).append(Pending(request, offsets))

    def end(self, marker: Request) -> None:
        """End a transaction."""
        waiting = self._pending.get(marker.body.group_id, [])
        for pending in tuple(waiting):
            is_committed = pending.fate(marker)
            if is_committed is None:
                continue
            waiting.remove(pending)
            if is_committed:
                for key, offset in pending.offsets.items():
                    self.commit(key, offset, pending.request.place)

    def is_pending(self, key: Key) -> bool:
        """Return True if a fetch of stable offsets is refused."""
        return any(key in pending.offsets for pending in self._pending.get(key[0], []))


def judge_outcomes(ledger: Ledger, outcomes: Outcomes) -> Iterator[Verdict]:
    """Check that the coordinator took each transaction as its client did."""
    for group_id, partition, offset in outcomes.committed:
        if (group_id, partition, offset) not in ledger.moved:
            sentence = f"{offset} of partition {partition} is not committed, and its transaction is"
            yield Verdict(Violation.OFFSET, 0, group_id, sentence)
    for group_id, partition, offset in outcomes.aborted:
        if (group_id, partition, offset) in ledger.moved:
            sentence = f"{offset} of partition {partition} is committed, and its transaction aborted"
            yield Verdict(Violation.OFFSET, 0, group_id, sentence)
