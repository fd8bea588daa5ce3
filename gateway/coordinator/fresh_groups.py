"""The groups for ListGroups and ListConfigResources, with every change that any gateway had answered before.

A batch of the query writes responses and views in no order that clients could rely on. So a client may have a
response before the view of the same change is on the groups topic. Therefore ListGroups first sends a request
that changes nothing through the query. That request is appended after all responses given by then, so it is
in a later batch than the requests they answer. A batch begins when all records of the previous batch are
acknowledged. So when the request is answered, their views are on the topic, and the list waits until the
reader has reached the topic's end.

One such request is enough for any number of request partitions, because the query runs one batch at a time,
and each batch reads all partitions up to the moment at which it was planned.
"""

import asyncio

import structlog

from gateway.coordinator.backend import Backend
from gateway.coordinator.groups import Groups
from gateway.wire.limits import Limits
from state.errors import ErrorCode
from state.kafka.requests import DescribeGroup
from state.kafka.responses import DescribeGroupResponse
from state.kafka.snapshot import GroupSnapshot
from state.messages import ANONYMOUS

# The group in the request that changes nothing. It need not exist.
_GROUP_ID = "__list_groups"
_CLIENT_ID = "gateway"
_DESCRIBE_VERSION = 5

log = structlog.get_logger()


class FreshGroups:
    """The groups, at least as of the call. Concurrent calls share a request."""

    def __init__(self, backend: Backend, groups: Groups, limits: Limits) -> None:
        self._backend = backend
        self._groups = groups
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
            # A request under way may have been sent before a response that this caller has seen.
            if self._next is None:
                self._next = asyncio.create_task(self._catch_up(self._running))
            await asyncio.shield(self._next)

    async def _catch_up(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        header = self._backend.header(_GROUP_ID, _DESCRIBE_VERSION, _CLIENT_ID, "", ANONYMOUS)
        answer = await self._backend.ask(DescribeGroup(**header), DescribeGroupResponse)
        if not answer.request and answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return  # no response: the backend has logged it
        if not await self._groups.reach_end(self._timeout_s):
            log.warning("the groups topic is not read to its end, ListGroups may miss the latest changes")
