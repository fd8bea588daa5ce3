"""The judge of the campaign about offsets in transactions: sound topics, and doctored ones."""

from collections.abc import Callable
from typing import Any, Self

import pytest

from tests.faults.campaign.judge.verdicts import Violation
from tests.faults.judged_topics import Topics, asked, done

PENDING = 88


class Group(Topics):
    """Transactions of producer 7, epoch 3, with offsets of partition 1."""

    def hold(self, offset: int, position: int, **fields: Any) -> Self:
        """Append an offset in a transaction of the older kind (TV1)."""
        body = {"producer_id": 7, "producer_epoch": 3, "txn_partition": 0, "txn_position": position}
        return self.ask("TxnOffsetCommit", done(1), topics=asked(1, offset), **body | fields)

    def end(self, position: int, *, committed: bool = True, first: int | None = None, epoch: int = 3) -> Self:
        """Append a marker."""
        first = position if first is None else first
        body: dict[str, Any] = {"producer_id": 7, "producer_epoch": epoch, "txn_partition": 0}
        body |= {"txn_position": position, "first_position": first, "committed": committed}
        return self.ask("TransactionMarker", {}, **body)

    def stable(self, offset: int, error: int = 0) -> Self:
        return self.fetch(offset, 1, error, require_stable=True)

    def told(self, offset: int, *, committed: bool) -> Self:
        """Note that the client saw the transaction committed, or aborted."""
        (self.committed if committed else self.aborted).append(("g", 1, offset))
        return self


def sound() -> Group:
    """Return a member that commits and fetches partition 0."""
    group = Group()
    for offset in range(12):
        group.heartbeat().commit(offset).fetch(offset)
    return group


Doctor = Callable[[Group], Topics]
DOCTORED: dict[str, Doctor] = {
    "pending taken for stable": lambda it: it.hold(50, 4).stable(-1),
    "committed and dropped": lambda it: it.hold(50, 4).end(4, committed=False).told(50, committed=True),
    "aborted and committed": lambda it: it.hold(50, 4).end(4).publish(50, 1).told(50, committed=False),
    "aborted and fetched": lambda it: it.hold(50, 4).end(4, committed=False).stable(50),
    # The first transaction's marker aborts at 4, and the second one's commits at 5.
    "committed by the marker of the next one": lambda it: (
        it.hold(50, 4).hold(60, 5).end(5).end(4, committed=False).stable(50).publish(50, 1)
    ),
    # Its end was an abort with the next epoch; the record says COMMIT.
    "fenced and committed": lambda it: it.hold(50, 4).end(4, epoch=4).stable(50),
    # Behind the one that waits stands a commit of the same partition.
    "older one moved over a plain commit": lambda it: (
        it.hold(50, 4).commit(60, partition=1).end(4).stable(50).publish(50, 1)
    ),
}
ALLOWED: dict[str, Doctor] = {
    "transaction committed": lambda it: (
        it.hold(50, 4).stable(-1, PENDING).fetch(11).end(4).stable(50).publish(50, 1).told(50, committed=True)
    ),
    # The first marker is an old copy of the one before.
    "transaction committed with an epoch of its own": lambda it: (
        it.hold(50, 4, txn_version=2)
        .end(6, first=4, epoch=3)
        .stable(-1, PENDING)
        .end(7, first=4, epoch=4)
        .stable(50)
        .publish(50, 1)
    ),
    "transaction aborted": lambda it: (
        it.hold(50, 4).end(4, committed=False).stable(-1).told(50, committed=False)
    ),
    # Two are pending with the same offset, and both are decided.
    "asked again after the gateway ended": lambda it: (
        it.hold(50, 4).hold(50, 4).end(4).end(4).stable(50).publish(50, 1).told(50, committed=True)
    ),
}


@pytest.mark.parametrize("doctor", DOCTORED.values(), ids=DOCTORED)
def test_judge_finds_the_planted_error_in_doctored_transactions(doctor: Doctor) -> None:
    assert doctor(sound()).violations() == {Violation.OFFSET}


@pytest.mark.parametrize("doctor", ALLOWED.values(), ids=ALLOWED)
def test_allowed_deviation_of_transactions_passes_the_judge(doctor: Doctor) -> None:
    assert doctor(sound()).violations() == set()
