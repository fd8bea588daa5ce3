"""Long work on the event loop, in slices between which other connections are served. The slices of all
requests run one at a time, so a turn of the loop has at most one slice, even if many clients send large
requests.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeVar

from gateway.fairness import CapacityLimiter, R

_SLICE_S = 0.002
# The number of entries after which the time is checked. They take a small part of a slice.
_BATCH = 256

Steps = Iterator[None]
"""Work in steps. It continues when the next step is requested."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Slices:
    """The slices of one request. `turns` is the limiter that all requests of a gateway share."""

    _turns: CapacityLimiter
    _slice_start_s: float = field(default_factory=time.monotonic)

    async def pause(self) -> None:
        """Let other work run if this slice has used its time."""
        if time.monotonic() - self._slice_start_s > _SLICE_S:
            # Only one request at a time holds `_turns`, and it continues in the next turn of the event loop.
            # So a turn has at most one slice.
            async with self._turns:
                await asyncio.sleep(0)
            self._slice_start_s = time.monotonic()

    async def run(self, steps: Steps) -> None:
        """Do all steps, and let other work run between slices."""
        for _ in steps:
            await self.pause()

    async def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the result of `work` for each item, in order."""
        results: list[R] = []
        for batch in batches(items):
            results += map(work, batch)
            await self.pause()
        return results

    async def filtered(self, is_kept: Callable[[T], bool], items: Sequence[T]) -> list[T]:
        """Return the items for which `is_kept` returns True, in order."""
        return list(compress(items, await self.each(is_kept, items)))


def run_at_once(steps: Steps) -> None:
    """Do all steps at once, without other work between them."""
    for _ in steps:
        pass


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in batches that are small enough for one step."""
    if len(items) <= _BATCH:
        yield items
        return
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]
