"""The follower of transactions without a broker. tests/e2e/test_transactions_follower.py has the rest."""

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError

from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader
from streaming.service.transactions import follower
from streaming.service.transactions.follower import partitions_of_all
from streaming.service.transactions.pending import marker_wait_ms

LAYOUT = TopicLayout.named(request_partitions=3)


class OfOneBroker(TopicReader):
    """A reader whose broker knows the first partitions of each topic."""

    def __init__(self, known: int) -> None:
        self._known = known

    def partitions_of(self, *topics: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in topics for number in range(self._known)]


@pytest.mark.parametrize("known", [0, 2])
def test_tw1_incomplete_partition_list_of_a_broker_is_an_error(known: int) -> None:
    """Else the follower would take nothing to be pending, and offsets would stay pending for ever."""
    with pytest.raises(KafkaError, match=f"has {known} of 3 partitions"):
        partitions_of_all(OfOneBroker(known), LAYOUT)


def test_tw1_all_partitions_are_read() -> None:
    expected = [TopicPartition(LAYOUT.transactions_topic, number) for number in range(3)]
    assert partitions_of_all(OfOneBroker(3), LAYOUT) == expected


@pytest.mark.parametrize(("partitions", "wait_ms"), [(0, 100), (1, 100), (4, 25), (50, 10), (101, 10)])
def test_tw2_a_fetch_of_markers_always_waits(partitions: int, wait_ms: int) -> None:
    wait = follower.MARKER_WAIT_MS, follower.LEAST_MARKER_WAIT_MS
    assert marker_wait_ms(partitions, *wait) == wait_ms


@pytest.mark.parametrize(("partitions", "wait_ms"), [(0, 20), (1, 20), (4, 5), (21, 1)])
def test_tw2_marker_fetch_for_reported_transactions_waits_less(partitions: int, wait_ms: int) -> None:
    """A report that comes meanwhile waits for it."""
    wait = follower.REPORTED_WAIT_MS, follower.LEAST_REPORTED_WAIT_MS
    assert marker_wait_ms(partitions, *wait) == wait_ms
