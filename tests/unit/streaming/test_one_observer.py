"""Whose the topics of an observer are, by their newest views."""

from types import SimpleNamespace

from kafka_why.contract.codec import encode
from kafka_why.topic_reader import Record
from streaming.observing.operator import incarnation, observer_id, writers
from tests.unit.kafka_why.page_facts import view

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
