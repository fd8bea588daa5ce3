"""The pauses before restarts."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# More doublings are beyond the longest pause. A float ends at 1,024 of them.
_DOUBLINGS_MAX = 10


def backoff_s(restarts: int, first_s: float = FIRST_PAUSE_S) -> float:
    """Return the pause in seconds before another start, after `restarts` starts since it last worked: 0
    before the first start, `first_s` before the second, then twice the last pause, at most `LONGEST_PAUSE_S`.
    """
    if not restarts:
        return 0.0
    return min(first_s * 2.0 ** min(restarts - 1, _DOUBLINGS_MAX), LONGEST_PAUSE_S)
