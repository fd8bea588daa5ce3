"""The watchdog: it ends a JVM that hangs, so that another one can be started.

A JVM that does not answer for `UNANSWERED_S` is killed, also while Spark starts in it. The service then goes
on as after any end of its JVM (`streaming.service.query.spark_keeper`).
"""

import threading
from collections.abc import Callable

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

UNANSWERED_S = 10
INTERVAL_S = 1.0


class Watchdog:
    """Asks the JVM by `ping` once an interval. `on_hung` is called once, in a thread, after so many intervals
    without an answer.

    Intervals are counted instead of measured: while this whole process is stopped, it cannot ask.
    """

    def __init__(
        self,
        ping: Callable[[], object],
        on_hung: Callable[[str], None],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._ping = ping
        self._on_hung = on_hung
        self._interval_s = interval_s
        self._has_answered = threading.Event()
        self._stopping = threading.Event()
        self._asking = threading.Thread(target=self._ask, name="watchdog-ping", daemon=True)
        self._watching = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._asking.start()
        self._watching.start()

    def stop(self) -> None:
        """End the watch. A question that is not answered stays open."""
        self._stopping.set()
        self._watching.join()
        self._asking.join(self._interval_s)

    def _ask(self) -> None:
        while not self._stopping.is_set():
            try:
                self._ping()
            except (Py4JError, OSError):
                self._stopping.set()  # the JVM has ended, which the supervisor sees
                return
            self._has_answered.set()
            self._stopping.wait(self._interval_s / 2)

    def _watch(self) -> None:
        unanswered = 0
        while not self._stopping.wait(self._interval_s):
            unanswered = 0 if self._has_answered.is_set() else unanswered + 1
            self._has_answered.clear()
            if unanswered >= UNANSWERED_S:
                self._on_hung(f"Spark's JVM has not answered for {UNANSWERED_S} s")
                return
