"""Long work on the event loop, in slices between which other connections are served. The slices of all
requests run one at a time, so a turn of the loop has at most one, even if many clients send large requests.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import TypeVar

from gateway.fairness import CapacityLimiter

_SLICE_S = 0.002
# This many entries take a small part of a slice.
_BATCH = 256

Steps = Iterator[None]
"""Work in steps. It continues when the next step is requested."""

T = TypeVar("T")
R = TypeVar("R")


class Slices:
    """The slices of one request. `turns` is shared by all requests of a gateway."""

    __slots__ = ("_began_s", "_turns")

    def __init__(self, turns: CapacityLimiter) -> None:
        self._turns = turns
        self._began_s = time.monotonic()

    async def pause(self) -> None:
        """Let other work run if this slice has used its time."""
        if time.monotonic() - self._began_s > _SLICE_S:
            async with self._turns:
                await asyncio.sleep(0)
            self._began_s = time.monotonic()

    async def run(self, steps: Steps) -> None:
        """Do all steps, and let other work run between slices."""
        for _ in steps:
            await self.pause()

    async def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the result of `work` for each item, in order."""
        results: list[R] = []
        for some in batches(items):
            results += map(work, some)
            await self.pause()
        return results

    async def kept(self, is_kept: Callable[[T], bool], items: Sequence[T]) -> list[T]:
        """Return the items for which `is_kept` returns True, in order."""
        return list(compress(items, await self.each(is_kept, items)))


def at_once(steps: Steps) -> None:
    """Do all steps without letting other work run."""
    for _ in steps:
        pass


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in batches that are small enough for one step."""
    if len(items) <= _BATCH:
        yield items
        return
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]
