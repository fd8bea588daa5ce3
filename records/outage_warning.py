"""Log lines of readers that go on trying: a few for each outage, and not one for each attempt."""

import time
from collections.abc import Callable

import structlog

INTERVAL_S = 60.0
# A reader that does not fail for so long reads again; some attempts of an outage end without an error.
QUIET_S = 5.0

log = structlog.get_logger()


class OutageWarning:
    """Warns when an outage begins and once a minute while it lasts, and tells its end.

    `what` is the attempt that fails, as the beginning of a sentence. For one thread.
    """

    def __init__(self, what: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now_s = now_s
        self._attempts = 0
        self._began_s = self._failed_s = self._warned_s = 0.0

    def failed(self, error: Exception) -> None:
        """One more attempt failed."""
        now_s = self._now_s()
        self._failed_s = now_s
        self._attempts += 1
        if self._attempts == 1:
            self._began_s = now_s
        elif now_s - self._warned_s < INTERVAL_S:
            return
        self._warned_s = now_s
        log.warning(
            f"{self._what} failed, trying again",
            attempts=self._attempts,
            for_s=round(now_s - self._began_s, 1),
            error=repr(error),
        )

    def worked(self) -> None:
        """One more attempt did not fail."""
        if self._attempts and self._now_s() - self._failed_s >= QUIET_S:
            log.info(f"{self._what} works again", attempts=self._attempts)
            self._attempts = 0
