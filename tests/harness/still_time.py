"""An event loop whose time stands still until a test advances it. Then due timers fire in order."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tests.harness.waiting import as_test

# Callbacks may schedule other callbacks. No chain of them in the code under test is longer.
_SETTLING_ITERATIONS = 40


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop with its own time. It does not wait for sockets to which others write."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1_000.0

    def time(self) -> float:
        """Return the time that the test has set."""
        return self._now_s

    @property
    def timers(self) -> int:
        """The number of timers that are set."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() for timer in scheduled)

    async def settle(self) -> None:
        """Run the scheduled callbacks, and those that they schedule."""
        for _ in range(_SETTLING_ITERATIONS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Advance the time, and fire the timers on the way one after the other."""
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
    """Decorate a coroutine as a test. Its first argument is a StillLoop. Exceptions in callbacks fail it."""
    return as_test(test, lambda arguments: _run(partial(test, **arguments)), skipped=1)


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
