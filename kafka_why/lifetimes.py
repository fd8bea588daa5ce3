"""Base classes of objects that a `with` block starts or closes, and a logger for objects that keep retrying.

The logger writes a few lines for each outage instead of one for each attempt.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import structlog


class Closeable(ABC):
    """An object that is ready after its construction, and is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Startable(ABC):
    """An object that is started at the beginning of a `with` block, and stopped at its end."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class BackgroundThread(Startable):
    """A daemon thread that executes `_run`, which subclasses define to return soon after `_stopped` is set.

    The thread may be stopped without having been started.
    """

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...


# The pause between two warnings of an outage.
INTERVAL_S = 60.0
# An outage ends when no attempt has failed for this long, because some attempts succeed during an outage.
QUIET_S = 5.0

log = structlog.get_logger()


class OutageWarning:
    """A logger of outages: a warning at the beginning and once a minute, and a line at the end.

    Not thread-safe. `what` names the failing attempt, as the beginning of a sentence.
    """

    def __init__(self, what: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now_s = now_s
        self._attempts = 0  # failed ones of the current outage; 0 if there is none
        # When the outage began, an attempt last failed, and a warning was last logged.
        self._began_s = self._failed_s = self._warned_s = 0.0

    def failed(self, error: Exception) -> None:
        """Record a failed attempt."""
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
        """Record a successful attempt. It ends the outage if no attempt has failed for QUIET_S."""
        if self._attempts and self._now_s() - self._failed_s >= QUIET_S:
            log.info(f"{self._what} works again", attempts=self._attempts)
            self._attempts = 0
