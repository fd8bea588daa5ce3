"""The costliest records of the greatest size. `tests.unit.state.test_worst_records` has every type at a
smaller size. The others took under 3 s when all were measured.
"""

import pytest

from tests.unit.state.test_worst_records import LARGE, MOST_BYTES, MOST_S, cost

COSTLIEST = (
    "ConsumerGroupHeartbeat, other names than before",
    "JoinGroup, metadata of topics",
    "JoinGroup, one topic many times",
    "JoinGroup, owned partitions, coordinator:sticky",
    "JoinGroup, owned partitions, coordinator:uniform",
    "JoinGroup, user data, coordinator:sticky",
    "LeaveGroup, members that are nobody",
    "LeaveGroup, of no group",
    "OffsetCommit, over many offsets",
    "TopicMetadata, ids of many offsets",
    "HEART_BEAT_CONSUMER, other topics than before",
    "LOCK_BATCH_MQ, refused",
    "QUERY_ASSIGNMENT, of all who share",
)


@pytest.mark.parametrize("name", COSTLIEST)
def test_the_worst_record_of_the_greatest_size_is_bounded(name: str) -> None:
    seconds, peak_bytes = cost(LARGE[name])
    assert peak_bytes < MOST_BYTES
    assert seconds < MOST_S
