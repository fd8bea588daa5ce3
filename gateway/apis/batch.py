"""Requests about several groups. The coordinator gets one request for each group, many of them concurrently.
Each group costs as much as a request of its own: capacity at the coordinator (`queued.max.requests`), and a
part of the client's quota. So a frame about many groups has no advantage over many requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.apis.context import Deferred, RequestContext
from gateway.wire.codec import Fields
from kafka_why.contract.messages import ErrorCode

# The maximum number of slots at the coordinator that one request acquires beside its own: a small part of
# `Limits.at_coordinator`.
AT_ONCE = 64

T = TypeVar("T")
R = TypeVar("R")

Start = Callable[[str], Fields | Deferred]
"""Starts the coordinator's request about a group, or returns the response if none is needed."""


async def map_items(
    context: RequestContext,
    work: Callable[[T], Awaitable[R]],
    items: Sequence[T],
    refuse: Callable[[T], R],
) -> list[R]:
    """Return the result of `work` for each item, in the order of the items.

    Work starts for at most `Limits.groups_per_request` items. No further work starts once the results exceed
    `Limits.groups_answer_bytes`. `refuse` gives the results of the remaining items.
    """
    limits, slices = context.services.cluster.limits, context.slices()
    allowed = items[: limits.groups_per_request]
    context.fan_out.count(context, len(allowed))
    async with asyncio.TaskGroup() as group:
        batch = _Batch(context, group)
        tasks = []
        for index, item in enumerate(allowed):
            if batch.result_bytes > limits.groups_answer_bytes:
                break
            if index > 0:  # the first item is already charged, as the request itself
                await context.fan_out.pay(context)
            tasks.append(await batch.start(work, item))
            await slices.pause()
    results = [task.result() for task in tasks]
    for refused_item in items[len(results) :]:
        results.append(refuse(refused_item))
        await slices.pause()
    return results


class _Batch:
    """The concurrent items of one request.

    One item at a time uses the slot at the coordinator that the request itself has acquired. The other items
    acquire slots only while no request waits for a slot. So no request waits for a slot while it holds one.
    """

    def __init__(self, context: RequestContext, group: asyncio.TaskGroup) -> None:
        self._fan_out = context.fan_out
        self._group = group
        self._is_own_slot_used = False
        """True while an item uses the slot of the request itself."""
        self._extra_slots = 0
        """The number of slots that other items have acquired."""
        self._item_done = asyncio.Event()
        self.result_bytes = 0
        """The approximate size of the results so far."""

    async def start(self, work: Callable[[T], Awaitable[R]], item: T) -> asyncio.Task[R]:
        """Start the work for an item as soon as a slot is free."""
        while (release := self._acquire_slot()) is None:
            self._item_done.clear()
            await self._item_done.wait()
        task = self._group.create_task(self._run(work, item))
        # A cancelled task may never have started, so its coroutine cannot release the slot.
        task.add_done_callback(release)
        return task

    async def _run(self, work: Callable[[T], Awaitable[R]], item: T) -> R:
        result = await work(item)
        self.result_bytes += len(msgspec.msgpack.encode(result))
        return result

    def _acquire_slot(self) -> Callable[[asyncio.Task[Any]], None] | None:
        """Acquire a slot. Return the function that releases it, or None if no slot is free."""
        if not self._is_own_slot_used:
            self._is_own_slot_used = True
            return self._release_own_slot
        if self._extra_slots < AT_ONCE and self._fan_out.try_acquire():
            self._extra_slots += 1
            return self._release_extra_slot
        return None

    def _release_own_slot(self, task: asyncio.Task[Any]) -> None:
        self._is_own_slot_used = False
        self._item_done.set()

    def _release_extra_slot(self, task: asyncio.Task[Any]) -> None:
        self._extra_slots -= 1
        self._fan_out.release()
        self._item_done.set()


def answer_per_group(
    context: RequestContext,
    start: Start,
    group_ids: Sequence[str],
    fields: Callable[[Sequence[Fields]], Fields],
) -> Deferred:
    """Answer a request about these groups with one request per group to the coordinator.

    `fields` builds the response from the results, one for each group. A request about several groups holds
    back the connection's next request.
    """
    # A request about one group does not hold back later requests, because librdkafka and others send a
    # request for each group.
    if len(group_ids) == 1:
        return Deferred(asyncio.ensure_future(_single_result(start(group_ids[0]))), fields)
    results = map_items(context, lambda group_id: _result(start(group_id)), group_ids, _too_many_groups)
    return Deferred(asyncio.ensure_future(results), fields, holds_back=True)


def _too_many_groups(group_id: str) -> Fields:
    return {"group_id": group_id, "error_code": ErrorCode.INVALID_REQUEST}


async def _single_result(started: Fields | Deferred) -> list[Fields]:
    """Return the result for the only group of a request, in a list as `map_items` does."""
    return [await _result(started)]


async def _result(started: Fields | Deferred) -> Fields:
    return started.fields(await started.response) if isinstance(started, Deferred) else started
