"""When a replica that is ahead of the query falls silent, and that an alarm comes before."""

from hypothesis import given
from hypothesis import strategies as st

from streaming.replica.lead import LEAD_MAX_BYTES, LEAD_MAX_S, Lead

seconds = st.floats(0, LEAD_MAX_S * 3)
sizes = st.integers(0, LEAD_MAX_BYTES * 3)


@given(seconds, sizes)
def test_a_silent_replica_has_had_an_alarm_since_half_of_the_bound(lead_s: float, size_bytes: int) -> None:
    lead = Lead(lead_s, size_bytes)
    assert bool(lead.why_silent()) == (lead_s > LEAD_MAX_S or size_bytes > LEAD_MAX_BYTES)
    assert (lead.alarm() is not None) == (lead_s > LEAD_MAX_S / 2 or size_bytes > LEAD_MAX_BYTES / 2)


@given(seconds, sizes)
def test_sentences_have_no_figure_that_grows(lead_s: float, size_bytes: int) -> None:
    """The status is written at each change of its alarm, and of what it says of the replica."""
    lead, late, large = Lead(lead_s, size_bytes), Lead(LEAD_MAX_S * 2), Lead(0, LEAD_MAX_BYTES * 2)
    assert lead.alarm() in (None, late.alarm(), large.alarm())
    assert lead.why_silent() in ("", late.why_silent(), large.why_silent())


def test_the_sentences() -> None:
    assert Lead(151).alarm() == (
        "the query has committed no batch for more than 150 s. "
        "The bound is 300 s: then the replica answers nothing, and clients wait for the query"
    )
    assert Lead(size_bytes=129 << 20).alarm() == (
        "more than 128 MiB of early answers wait for the query's. "
        "The bound is 256 MiB: then the replica answers nothing, and clients wait for the query"
    )
    assert Lead(301).why_silent() == "the query has committed no batch for more than 300 s"
    assert Lead(size_bytes=257 << 20).why_silent() == (
        "more than 256 MiB of early answers wait for the query's"
    )
