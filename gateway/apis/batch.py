"""Requests about several groups. The coordinator gets one request for each group."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

# The number of coordinator requests that one client's request may have under way.
AT_ONCE = 64

T = TypeVar("T")
R = TypeVar("R")


async def each(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Return the result of `work` for each item, in the order of the items."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with room:
            return await work(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]
