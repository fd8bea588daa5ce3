"""Base classes of objects that are started or closed by a `with` block."""

import threading
from abc import ABC, abstractmethod
from typing import Self


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


# A thread of the coordinator's process that works until it is stopped.


class BackgroundThread(Startable):
    """A thread that executes `_run`, which returns soon after `_stopped` is set.

    It may be stopped even if it was never started.
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
