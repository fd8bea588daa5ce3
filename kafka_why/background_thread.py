"""A thread of the coordinator's process that works until it is stopped."""

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """`_run` works in the thread, and returns soon after `_stopped` is set."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...
