"""Requests about several groups, each of which is a request of its own to the coordinator."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

# So many of one client's groups are asked about at a time.
AT_ONCE = 64

T = TypeVar("T")
R = TypeVar("R")


async def each(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """What `work` gives for each item, in their order."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with room:
            return await work(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]
