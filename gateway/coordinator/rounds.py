"""Work for callers that come at the same time, in rounds."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

S = TypeVar("S")
R = TypeVar("R")


class Rounds(Generic[S]):
    """Does the work of callers in rounds. A round begins when the one before it has ended, with all callers
    that came until then. `begin` runs once a round, and all work of the round gets its result.

    So each caller gets the result of a round that began after its call. The work is done one piece at a time,
    and callers with equal keys share a result: what is in memory does not grow with the number of callers.
    """

    def __init__(self, begin: Callable[[], Awaitable[S]]) -> None:
        self._begin = begin
        self._waiting: dict[Hashable, _Piece[S]] = {}
        self._running: asyncio.Task[None] | None = None

    async def run(self, key: Hashable, work: Callable[[S], Awaitable[R]]) -> R:
        """Return the result of `work`, or of the same work of another caller with this key. Work that all of
        its callers have cancelled is left out.
        """
        piece = self._waiting.setdefault(key, _Piece(work))
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        piece.results.append(result)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await result

    async def _run(self) -> None:
        try:
            while self._waiting:
                pieces = deque(self._waiting.values())
                self._waiting = {}
                await self._round(pieces)
        finally:
            self._running = None

    async def _round(self, pieces: "deque[_Piece[S]]") -> None:
        try:
            begun = await self._begin()
        except Exception as error:  # noqa: BLE001 - the callers must get any error
            for piece in pieces:
                piece.fail(error)
            return
        while pieces:  # a result that its callers are through with is not kept
            piece = pieces.popleft()
            if piece.is_wanted:
                await piece.run(begun)


class _Piece(Generic[S]):
    """Work of one round, and the results that its callers wait for."""

    __slots__ = ("_work", "results")

    def __init__(self, work: Callable[[S], Awaitable[Any]]) -> None:
        self._work = work
        self.results: list[asyncio.Future[Any]] = []

    @property
    def is_wanted(self) -> bool:
        return not all(result.done() for result in self.results)

    async def run(self, begun: S) -> None:
        try:
            made = await self._work(begun)
        except Exception as error:  # noqa: BLE001 - the callers must get any error
            self.fail(error)
            return
        # Each caller may write the result to a client, which takes some ms if it is long.
        for result in self.results:
            if not result.done():
                result.set_result(made)
                await asyncio.sleep(0)

    def fail(self, error: Exception) -> None:
        for result in self.results:
            if not result.done():
                result.set_exception(error)
