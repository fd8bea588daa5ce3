"""When a replica that is ahead of the query falls silent, and that an alarm comes before."""

from hypothesis import given
from hypothesis import strategies as st

from streaming.replica.follower import LEAD_MAX_BYTES, LEAD_MAX_S, Lead

seconds = st.floats(0, LEAD_MAX_S * 3)
sizes = st.integers(0, LEAD_MAX_BYTES * 3)


@given(seconds, sizes)
def test_silent_replica_raises_an_alarm_at_half_of_the_limit(lead_s: float, size_bytes: int) -> None:
    lead = Lead(lead_s, size_bytes)
    assert bool(lead.why_silent()) == (lead_s > LEAD_MAX_S or size_bytes > LEAD_MAX_BYTES)
    assert (lead.alarm() is not None) == (lead_s > LEAD_MAX_S / 2 or size_bytes > LEAD_MAX_BYTES / 2)
