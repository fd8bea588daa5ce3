"""The judge of the campaign about offsets in transactions: sound topics, and doctored ones."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.campaign.judge.topics import Record
from tests.faults.campaign.judge.verdicts import Wrong
from tests.faults.judged_topics import TOPIC, Topics, asked, commit, done, dumped, fetch, heartbeat


def sound() -> Topics:
    """A member that commits and fetches partition 0."""
    topics = Topics()
    for offset in range(12):
        heartbeat(topics)
        commit(topics, offset)
        fetch(topics, offset)
    return topics


def hold(topics: Topics, offset: int, position: int, **fields: Any) -> str:
    """Offset of partition 1 in a transaction of producer 7, epoch 3, of the older kind (TV1)."""
    body = {"producer_id": 7, "producer_epoch": 3, "txn_partition": 0, "txn_position": position, **fields}
    return topics.ask("TxnOffsetCommit", done(1), topics=asked(1, offset), **body)


def mark(
    topics: Topics, position: int, *, committed: bool = True, first: int | None = None, epoch: int = 3
) -> str:
    """A marker of producer 7."""
    body: dict[str, Any] = {"producer_id": 7, "producer_epoch": epoch}
    body |= {"txn_partition": 0, "txn_position": position}
    first = position if first is None else first
    return topics.ask("TransactionMarker", {}, **body, first_position=first, committed=committed)


def fetch_stable(topics: Topics, offset: int, error: int = 0) -> str:
    """Partition 1."""
    asked = [{"name": TOPIC, "partition_indexes": [1]}]
    partition = {"partition_index": 1, "committed_offset": offset, "error_code": error}
    return topics.ask(
        "OffsetFetch",
        {"topics": [{"name": TOPIC, "partitions": [partition]}]},
        topics=asked,
        require_stable=True,
    )


def publish(topics: Topics, offset: int) -> None:
    """A record of partition 1 on the offsets topic."""
    key = json.dumps(["g", TOPIC, 1]).encode()
    topics.offsets.append(Record(0, len(topics.offsets), topics.now_ms, key, dumped({"offset": offset})))


def pending_taken_for_stable(topics: Topics) -> None:
    hold(topics, 50, position=4)
    fetch_stable(topics, -1)


def committed_and_dropped(topics: Topics) -> None:
    """The client saw the transaction committed."""
    hold(topics, 50, position=4)
    mark(topics, 4, committed=False)
    topics.committed.append(("g", 1, 50))


def aborted_and_committed(topics: Topics) -> None:
    hold(topics, 50, position=4)
    mark(topics, 4)
    publish(topics, 50)
    topics.aborted.append(("g", 1, 50))


def aborted_and_fetched(topics: Topics) -> None:
    hold(topics, 50, position=4)
    mark(topics, 4, committed=False)
    fetch_stable(topics, 50)


def committed_by_the_marker_of_the_next_one(topics: Topics) -> None:
    """The first transaction's marker aborts at 4, and the second one's commits at 5."""
    hold(topics, 50, position=4)
    hold(topics, 60, position=5)
    mark(topics, 5)
    mark(topics, 4, committed=False)
    fetch_stable(topics, 50)
    publish(topics, 50)


def fenced_and_committed(topics: Topics) -> None:
    """Its end was an abort with the next epoch; the record says COMMIT."""
    hold(topics, 50, position=4)
    mark(topics, 4, epoch=4)
    fetch_stable(topics, 50)


def older_one_moved_over_a_plain_commit(topics: Topics) -> None:
    """Behind the one that waits stands a commit of the same partition."""
    hold(topics, 50, position=4)
    topics.ask("OffsetCommit", done(1), member_id="m1", generation_id=1, topics=asked(1, 60))
    mark(topics, 4)
    fetch_stable(topics, 50)
    publish(topics, 50)


@pytest.mark.parametrize(
    "doctor",
    [
        pending_taken_for_stable,
        committed_and_dropped,
        aborted_and_committed,
        aborted_and_fetched,
        committed_by_the_marker_of_the_next_one,
        fenced_and_committed,
        older_one_moved_over_a_plain_commit,
    ],
)
def test_doctored_topics_show_the_wrong(doctor: Callable[[Topics], None]) -> None:
    topics = sound()
    doctor(topics)
    assert topics.wrongs() == {Wrong.OFFSET}


def transaction_committed(topics: Topics) -> None:
    hold(topics, 50, position=4)
    fetch_stable(topics, -1, error=88)
    fetch(topics, 11)
    mark(topics, 4)
    fetch_stable(topics, 50)
    publish(topics, 50)
    topics.committed.append(("g", 1, 50))


def transaction_committed_with_an_epoch_of_its_own(topics: Topics) -> None:
    hold(topics, 50, position=4, txn_version=2)
    mark(topics, 6, first=4, epoch=3)  # an old copy of the marker before
    fetch_stable(topics, -1, error=88)
    mark(topics, 7, first=4, epoch=4)
    fetch_stable(topics, 50)
    publish(topics, 50)


def transaction_aborted(topics: Topics) -> None:
    hold(topics, 50, position=4)
    mark(topics, 4, committed=False)
    fetch_stable(topics, -1)
    topics.aborted.append(("g", 1, 50))


def asked_again_after_the_gateway_ended(topics: Topics) -> None:
    """Two are pending with the same offset, and both are decided."""
    hold(topics, 50, position=4)
    hold(topics, 50, position=4)
    mark(topics, 4)
    mark(topics, 4)
    fetch_stable(topics, 50)
    publish(topics, 50)
    topics.committed.append(("g", 1, 50))


@pytest.mark.parametrize(
    "doctor",
    [
        transaction_committed,
        transaction_committed_with_an_epoch_of_its_own,
        transaction_aborted,
        asked_again_after_the_gateway_ended,
    ],
)
def test_what_is_allowed_is_no_wrong(doctor: Callable[[Topics], None]) -> None:
    topics = sound()
    doctor(topics)
    assert topics.wrongs() == set()
