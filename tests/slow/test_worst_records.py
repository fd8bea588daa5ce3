"""The records of the greatest size: see `tests.unit.state.test_worst_records`."""

import pytest

from tests.unit.state.test_worst_records import LARGE, MOST_BYTES, MOST_S, cost


@pytest.mark.parametrize("name", LARGE)
def test_the_worst_record_of_the_greatest_size_is_bounded(name: str) -> None:
    seconds, peak_bytes = cost(LARGE[name])
    assert peak_bytes < MOST_BYTES
    assert seconds < MOST_S
