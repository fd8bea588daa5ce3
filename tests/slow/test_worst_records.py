"""The costliest records of the greatest size. `tests.unit.state.test_worst_records` has every type at a
smaller size. The others took under 3 s of processor time, the measuring of their memory included.
"""

import pytest

from tests.unit.state.test_worst_records import MOST_BYTES, MOST_S, cost, large

COSTLIEST = (
    "ConsumerGroupHeartbeat, other names than before",
    "JoinGroup, one topic many times",
    "JoinGroup, owned partitions, coordinator:sticky",
    "JoinGroup, owned partitions, coordinator:uniform",
    "LeaveGroup, members that are nobody",
    "LeaveGroup, of no group",
)


@pytest.mark.parametrize("name", COSTLIEST)
def test_the_worst_record_of_the_greatest_size_is_bounded(name: str) -> None:
    seconds, peak_bytes = cost(large()[name])
    assert peak_bytes < MOST_BYTES
    assert seconds < MOST_S
