"""An event loop whose time stands still until a test moves it. What is due then is called in its order."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tests.harness.coroutines import as_test

# A callback of the loop may call another one soon. No chain of those under test is longer.
_TURNS = 10


class StillLoop(asyncio.SelectorEventLoop):
    """See the module. Not for sockets that others write to: nothing waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1_000.0

    def time(self) -> float:
        """See `asyncio.AbstractEventLoop`."""
        return self._now_s

    @property
    def timers(self) -> int:
        """The number of timers that are set."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() for timer in scheduled)

    async def settle(self) -> None:
        """Let what is called soon be called."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the time, one timer after the other."""
        until_s = self._now_s + seconds
        while (next_s := self._next_s()) is not None and next_s <= until_s:
            self._now_s = next_s
            await self.settle()
        self._now_s = until_s
        await self.settle()

    def _next_s(self) -> float | None:
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return min((timer.when() for timer in scheduled if not timer.cancelled()), default=None)


def in_still_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """Make a test of a coroutine whose first argument is such a loop. What a callback raises fails it."""
    return as_test(test, lambda arguments: _run(partial(test, **arguments)), given=1)


def _run(play: Callable[[StillLoop], Awaitable[None]]) -> None:
    raised: list[BaseException] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)
        loop.set_exception_handler(lambda _, context: raised.append(_error(context)))
        await play(loop)
        await loop.settle()

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(run())
    if raised:
        raise raised[0]


def _error(context: dict[str, Any]) -> BaseException:
    error: BaseException = context.get("exception") or RuntimeError(context["message"])
    return error
