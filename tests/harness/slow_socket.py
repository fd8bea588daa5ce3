"""A socket of the gateway whose client does not always read, for a loop whose time stands still."""

import asyncio
from typing import Any

from gateway.net.stream import ClientStream
from tests.harness.still_time import StillLoop


class Socket(asyncio.Transport):
    """A client's socket. With `is_slow` its kernel takes nothing until `take_all`."""

    def __init__(self, loop: StillLoop) -> None:
        super().__init__()
        self._loop = loop
        self.stream: ClientStream
        self.written: list[bytes] = []
        self.held = b""
        self.is_slow = self.is_paused = self.has_eof = self.is_closed = False
        self.late = 0
        """The number of writes after the end."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: Any) -> None:
        self.late += self.stream.ended.done() or self.has_eof or self.is_closed
        self.written.append(bytes(data))
        if self.is_slow:
            is_first, self.held = not self.held, self.held + bytes(data)
            if is_first:
                self.stream.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def take_all(self) -> None:
        self.is_slow = False
        if self.held and not self.is_closed:
            self.held = b""
            self.stream.resume_writing()

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.has_eof
        self.has_eof = True

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self.stream.connection_lost, None)

    close = abort
