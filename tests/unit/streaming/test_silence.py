"""How a standby counts the silence of the owner."""

from streaming.service.standby import LONGEST_LOOK_S, Silence


def test_silence_is_counted_look_by_look_and_ends_with_a_sign() -> None:
    times_s = iter((0.0, 1.0, 2.5, 2.5, 3.0))
    silence = Silence(lambda: next(times_s))
    silence.goes_on()
    silence.goes_on()
    assert silence.seconds == 2.5
    silence.end()
    assert silence.seconds == 0
    silence.goes_on()
    assert silence.seconds == 0.5


def test_a_standby_that_was_stopped_itself_has_not_seen_a_silence() -> None:
    """A suspended machine that wakes up must not take the topics from an owner that runs."""
    times_s = iter((0.0, 3_600.0))
    silence = Silence(lambda: next(times_s))
    silence.goes_on()
    assert silence.seconds == LONGEST_LOOK_S
