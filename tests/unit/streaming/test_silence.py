"""A standby's count of the owner's silence."""

from streaming.service.ownership.lease import LONG_POLL_S, POLL_S, RETURN_S, Silence

LIMIT_MS = 2_000


def silence_at(*times_s: float) -> Silence:
    """Return a silence that begins at the first of these times, and reads the next ones from its clock."""
    times = iter(times_s)
    return Silence(lambda: next(times))


def test_owner_silence_is_counted_poll_by_poll_until_a_sign() -> None:
    silence = silence_at(0.0, 1.0, 2.5, 2.5, 3.0)
    silence.add_poll()
    assert not silence.is_longer_than(LIMIT_MS)
    silence.add_poll()
    assert silence.seconds == 2.5
    assert silence.is_longer_than(LIMIT_MS)
    silence.reset()
    assert silence.seconds == 0
    silence.add_poll()
    assert silence.seconds == 0.5


def test_time_of_a_long_poll_does_not_count_as_owner_silence() -> None:
    """A machine that was suspended, or a call that waited for a broker, shows nothing about the owner."""
    silence = silence_at(0.0, 3_600.0)
    silence.add_poll()
    assert silence.seconds == POLL_S


def test_silent_owner_gets_time_to_reconnect_after_a_broker_outage() -> None:
    """An owner that runs may reconnect after the standby has."""
    back_s = 10.0
    after_an_error = silence_at(0.0, back_s, back_s + 1.9, back_s + 3.8, back_s + 5.0)
    after_an_error.cut_off()
    after_a_long_look = silence_at(
        0.0, LONG_POLL_S + 0.1, LONG_POLL_S + 2.0, LONG_POLL_S + 3.9, LONG_POLL_S + 4.6
    )
    after_a_long_look.add_poll()
    for silence in (after_an_error, after_a_long_look):
        silence.add_poll()
        silence.add_poll()
        assert silence.seconds > LIMIT_MS / 1000
        assert not silence.is_longer_than(LIMIT_MS)
        silence.add_poll()
        assert silence.seconds == LIMIT_MS / 1000 + RETURN_S
        assert silence.is_longer_than(LIMIT_MS)


def test_sign_of_life_ends_the_owners_time_to_reconnect() -> None:
    silence = silence_at(0.0, 1.0, 2.0, 4.0)
    silence.cut_off()
    silence.reset()
    silence.add_poll()
    assert silence.is_longer_than(LIMIT_MS)
