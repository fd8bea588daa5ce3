"""The observing operator, without Spark: records in, records of the topics and the state out."""

import json
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from checkpoints.codec import StateError, decode_observed, encode_observed
from kafka_why.contract.codec import Reason, encode
from kafka_why.contract.layout import TopicLayout
from kafka_why.observed.group import ObservedGroup
from kafka_why.topic_reader import NamesById, Record
from streaming.observing.operator import ObservingCall, incarnation, observer_id, writers
from streaming.query.admission import LogRow
from tests.harness.observed_log import REAL_OF_OTHERS, converted_rows, real_rows
from tests.harness.operator_call import spark_state
from tests.unit.kafka_why.page_facts import view

LAYOUT = TopicLayout.observed("o", 1)
ORDERS = next(row.value[15:31] for row in real_rows() if row.key.startswith(b"\0\7"))

Row = tuple[int, bytes] | None


def called(
    rows: Sequence[LogRow], state: Row = None, names: dict[bytes, str] | None = None
) -> tuple[list[pd.DataFrame], Row]:
    """Call the operator with these records, in a process of its own. Return its output and the state."""
    spark = spark_state(state)
    call = ObservingCall(LAYOUT, "observer", NamesById(lambda: names or {}), "shard 0", spark)
    frames = [*call.apply(rows), *call.finish()]
    return frames, spark.get if spark.exists else None


def records(frames: Iterable[pd.DataFrame], topic: str) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Return the records of a topic, None for a tombstone."""
    return [
        (key, None if value is None else json.loads(value))
        for frame in frames
        for to, key, value in zip(frame["topic"], frame["key"], frame["value"], strict=True)
        if to == topic
    ]


def row(key: bytes, value: bytes = b"") -> LogRow:
    return LogRow(3, 7, 1_000, key, value)


def test_the_records_of_a_real_broker_are_written_to_the_topics() -> None:
    frames, state = called(real_rows())
    views = dict(records(frames, LAYOUT.groups_topic))
    assert {key: (view or {})["state"] for key, view in views.items()} == {
        b"classic": "Empty",
        b"consumer": "Empty",
    }
    assert all(view is not None and view["observed"] for view in views.values())
    offsets = [content for _, content in records(frames, LAYOUT.offsets_topic)]
    assert sorted((o["group_id"], o["partition"]) for o in offsets if o) == [
        (group, n) for group in ("classic", "consumer") for n in range(4)
    ]
    events = [content for _, content in records(frames, LAYOUT.events_topic)]
    assert all(event is not None and event["observed"] for event in events)
    assert {(event or {})["incarnation"].partition("@")[2] for event in events} == {"observer"}
    assert records(frames, LAYOUT.dead_letters_topic) == []
    assert state is not None


def test_observer_history_is_the_same_for_any_split_into_batches() -> None:
    """A restarted observer looks up its groups' topics, to find the commits of a member that left."""
    rows = [*real_rows(), *(row._replace(partition=9) for row in real_rows(REAL_OF_OTHERS))]
    names, topic = {ORDERS: "orders"}, LAYOUT.events_topic
    whole = records(called(rows, None, names)[0], topic)
    reasons = {(event or {})["reason"] for _, event in whole if (event or {})["type"] == "MemberRemoved"}
    assert any("commit" in reason for reason in reasons)
    for cut in range(1, len(rows)):
        first, state = called(rows[:cut], None, names)
        then, _ = called(rows[cut:], state, names)
        assert records(first, topic) + records(then, topic) == whole


def test_observer_does_not_report_a_converted_group_as_new() -> None:
    frames, _ = called(converted_rows())
    events = [event or {} for _, event in records(frames, LAYOUT.events_topic)]
    added = [event["client_id"] for event in events if event["type"] == "MemberAdded"]
    assert (events[0]["seq"] > 1, added) == (True, ["k2"]), "k1 was a member before"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(b"\0\x63\0\1g"), Reason.UNSUPPORTED_VERSION),
        (row(b"\0\2\0\1g", b"\0\x09rest"), Reason.UNSUPPORTED_VERSION),
        (row(b"\0\2\0\1g", b"\0\3cut"), Reason.INVALID_RECORD),
        (row(b"\0"), Reason.INVALID_RECORD),
        (row(b""), Reason.INVALID_RECORD),
    ],
)
def test_unreadable_record_is_dead_lettered_and_the_rest_processed(bad: LogRow, reason: Reason) -> None:
    frames, _ = called([bad, *real_rows()])
    (letter,) = [content for _, content in records(frames, LAYOUT.dead_letters_topic)]
    assert letter is not None
    assert (letter["reason"], letter["request"]) == (reason, "__consumer_offsets-3-7")
    assert len(records(frames, LAYOUT.groups_topic)) == 2


def test_observed_group_that_ends_leaves_a_tombstone_and_no_state() -> None:
    commit = [one for one in real_rows() if one.key.startswith(b"\0\1") and b"classic" in one.key][:1]
    _, state = called(commit)
    frames, after = called([commit[0]._replace(value=b"")], state)
    assert records(frames, LAYOUT.groups_topic) == [(b"classic", None)]
    assert [content for _, content in records(frames, LAYOUT.offsets_topic)] == [None]
    assert after is None


def test_observers_stored_group_of_another_version_is_refused() -> None:
    entry = encode_observed(ObservedGroup("g", "i"))
    assert decode_observed("g", entry) == ObservedGroup("g", "i")
    with pytest.raises(StateError, match="observed group 'g' is of version 9"):
        decode_observed("g", type(entry)(9, None, entry.group))
    with pytest.raises(StateError, match="is damaged"):
        decode_observed("g", type(entry)(entry.version, None, entry.group[:-1]))


OURS, OTHER = observer_id("0123456789abcdef"), observer_id("fedcba9876543210")


def written(observer: str | None, partition: int = 0) -> Record:
    """Return a view that an observer wrote, or a tombstone."""
    value = None if observer is None else encode(view(incarnation=incarnation("source-7-42", observer)))
    return SimpleNamespace(partition=partition, value=value)


def test_newest_view_of_each_partition_identifies_the_writing_observer() -> None:
    assert writers([]) == set()
    assert writers([written(None)]) == set()
    assert writers([written(OTHER), written(OURS), written(None)]) == {OURS}
    assert writers([written(OURS), written(OTHER, partition=1), written(OURS)]) == {OURS, OTHER}


def test_observer_ids_are_short_and_distinct() -> None:
    assert OURS != OTHER
    assert incarnation("source-7-42", OURS) == f"source-7-42@{OURS}"
