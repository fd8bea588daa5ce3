"""A client's connection as the gateway's limits and deadlines see it, without a socket."""

import asyncio
from dataclasses import dataclass, field


@dataclass(eq=False)
class NoSocketClient:
    """A `gateway.net.lifecycle.ServedClient` that records the reasons of its ends."""

    peer: str = "127.0.0.1"
    is_busy: bool = False
    held_bytes: int = 100
    has_incomplete_frame: bool = True
    is_held: bool = False
    ends: list[Exception] = field(default_factory=list)

    @property
    def ended(self) -> "asyncio.Future[Exception]":
        ended = asyncio.get_running_loop().create_future()
        if self.ends:
            ended.set_result(self.ends[0])
        return ended

    def set_waiting(self, *, waiting: bool) -> None:
        self.is_held = waiting

    def set_held(self, *, held: bool) -> None:
        self.is_held = held

    def end(self, why: Exception) -> None:
        self.ends.append(why)

    def abort(self) -> None:
        self.end(ConnectionAbortedError())
