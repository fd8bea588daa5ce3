"""The pause before another start grows, and is bounded however often something has ended."""

import pytest

from streaming.service.pauses import LONGEST_PAUSE_S, pause_before
from streaming.service.replica import supervision


def test_pauses_double_up_to_half_a_minute() -> None:
    assert [pause_before(n) for n in range(9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert LONGEST_PAUSE_S == 30.0


def test_the_pauses_of_a_replica_begin_shorter() -> None:
    pauses_s = [pause_before(n, supervision.FIRST_PAUSE_S) for n in range(1, 10)]
    assert pauses_s == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0])


@pytest.mark.parametrize("restarts", [100, 1_025, 1_000_000])
@pytest.mark.parametrize("first_s", [0.5, supervision.FIRST_PAUSE_S])
def test_no_number_of_restarts_is_too_large(restarts: int, first_s: float) -> None:
    """Two to the power of 1,024 is no float: the thread that starts things again would end."""
    assert pause_before(restarts, first_s) == LONGEST_PAUSE_S
