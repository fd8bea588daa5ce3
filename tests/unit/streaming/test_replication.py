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
def test_replication_is_three_with_two_in_sync_or_limited_by_brokers(
    brokers: int, factor: int | None, min_in_sync: int | None, expected: tuple[int, int]
) -> None:
    replication = Replication.on(brokers, factor, min_in_sync)
    assert (replication.factor, replication.min_in_sync) == expected


def test_min_insync_replicas_above_the_replication_factor_is_refused() -> None:
    with pytest.raises(TopicsError, match=r"min.insync.replicas=2 is more than the replication factor, 1"):
        Replication.on(1, None, 2)
