"""The records of the greatest size that take most time and most memory. `tests.unit.state.test_worst_records`
has every type at a smaller size.
"""

import pytest

from tests.unit.state.test_worst_records import MOST_BYTES, MOST_S, cost, large

COSTLIEST = ("ConsumerGroupHeartbeat, other names than before", "LeaveGroup, members that are nobody")


@pytest.mark.parametrize("name", COSTLIEST)
def test_the_worst_record_of_the_greatest_size_is_bounded(name: str) -> None:
    seconds, peak_bytes = cost(large()[name])
    assert peak_bytes < MOST_BYTES
    assert seconds < MOST_S
