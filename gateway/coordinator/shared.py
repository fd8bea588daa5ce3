"""One run for callers that come at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Runs `work` for its callers. Each gets the result of a run that began after its call, and those that
    come while a run is under way share the next one.
    """

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def run(self) -> T:
        """The result of a run. The run goes on if the caller is cancelled."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._work()
