"""What a `with` block ends."""

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """Something that works from its construction on, and is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Startable(ABC):
    """Something that is started at the beginning of a `with` block, and stopped at its end."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
