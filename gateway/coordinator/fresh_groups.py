"""The groups for ListGroups and ListConfigResources, with every change that any gateway had answered before.

A response may come before the view of the same change is on the groups topic. So ListGroups first sends the
requests of a barrier (`clients.views_barrier`), which change nothing. When they are answered, the views are
on the topic, and the list waits until the reader has reached the topic's end.
"""

import asyncio

import structlog

from clients.views_barrier import BARRIER_VERSION, barrier_request, barrier_rounds
from gateway.coordinator.backend import Backend
from gateway.coordinator.groups import Groups
from gateway.wire.limits import Limits
from state.errors import ErrorCode
from state.kafka.responses import DescribeGroupResponse
from state.kafka.snapshot import GroupSnapshot
from state.messages import ANONYMOUS

_CLIENT_ID = "gateway"

log = structlog.get_logger()


class FreshGroups:
    """The groups, at least as of the call. Concurrent calls share a barrier."""

    def __init__(self, backend: Backend, groups: Groups, limits: Limits, request_partitions: int) -> None:
        self._backend = backend
        self._groups = groups
        self._rounds = barrier_rounds(request_partitions)
        self._timeout_s = limits.groups_behind_max_s
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def groups(self) -> list[GroupSnapshot] | None:
        """The existing groups by id, None until they are read for the first time.

        If the coordinator does not answer, or the reader does not reach the end of the topic in time, these
        are the groups as far as they are read.
        """
        await self._refresh()
        return self._groups.groups()

    async def configured(self) -> list[str] | None:
        """As `groups`: the ids that have settings, whether or not the groups exist."""
        await self._refresh()
        return self._groups.configured()

    async def _refresh(self) -> None:
        if self._groups.groups() is not None:
            # A barrier under way may have begun before a response that this caller has seen.
            if self._next is None:
                self._next = asyncio.create_task(self._catch_up(self._running))
            await asyncio.shield(self._next)

    async def _catch_up(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        for group_ids in self._rounds:
            if not all(await asyncio.gather(*map(self._is_answered, group_ids))):
                return
        if not await self._groups.reach_end(self._timeout_s):
            log.warning("the groups topic is not read to its end, ListGroups may miss the latest changes")

    async def _is_answered(self, group_id: str) -> bool:
        """Ask about a group of the barrier. False if there is no response, which the backend has logged."""
        header = self._backend.header(group_id, BARRIER_VERSION, _CLIENT_ID, "", ANONYMOUS)
        answer = await self._backend.ask(barrier_request(header), DescribeGroupResponse)
        return bool(answer.request) or answer.error_code is not ErrorCode.COORDINATOR_NOT_AVAILABLE
