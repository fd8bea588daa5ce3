"""A thread of the coordinator's process that works until it is stopped."""

import threading
from abc import abstractmethod

from kafka_why.lifetimes import Startable


class BackgroundThread(Startable):
    """`_run` works in the thread, and returns soon after `_stopped` is set. One that was not started may be
    stopped, too.
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
