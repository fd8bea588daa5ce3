"""How many replicas the coordinator's topics have on a cluster."""

import pytest

from streaming.service.topics import Replication, TopicsError


@pytest.mark.parametrize(
    ("brokers", "factor", "min_in_sync", "expected"),
    [
        (1, None, None, (1, 1)),
        (2, None, None, (2, 1)),
        (3, None, None, (3, 2)),
        (9, None, None, (3, 2)),
        (9, 1, None, (1, 1)),
        (9, 2, None, (2, 1)),
        (9, 5, None, (5, 2)),
        (3, None, 1, (3, 1)),
        (3, None, 3, (3, 3)),
        (9, 5, 3, (5, 3)),
    ],
)
def test_three_replicas_two_in_sync_as_far_as_there_are_brokers(
    brokers: int, factor: int | None, min_in_sync: int | None, expected: tuple[int, int]
) -> None:
    replication = Replication.on(brokers, factor, min_in_sync)
    assert (replication.factor, replication.min_in_sync) == expected


def test_topics_that_could_never_be_written_are_refused() -> None:
    with pytest.raises(TopicsError, match=r"min.insync.replicas=2 is more than the replication factor, 1"):
        Replication.on(1, None, 2)
