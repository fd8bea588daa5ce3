"""What ListGroups tells: all that any client was told of before it asked, by whichever gateway.

A batch of the query writes answers and views in no order that clients could rely on, so a client may have an
answer before the view that goes with it stands on the groups topic. Therefore a request that changes nothing
is sent through the query first. It is appended after every answer that was given by then, so it is in a later
batch than these; and a batch begins when all records of the one before are acknowledged. So when it is
answered their views stand on the topic, and the list waits until the reader has reached the topic's end.

One such request is enough, whatever the number of request partitions: the query has one batch at a time, and
each reads all partitions up to the moment at which it was planned.
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

# The group that is described; it need not be there.
_GROUP_ID = "__list_groups"
_CLIENT_ID = "gateway"
_DESCRIBE_VERSION = 5

log = structlog.get_logger()


class FreshGroups:
    """The groups, no older than the question. Questions that come together share a request."""

    def __init__(self, backend: Backend, groups: Groups, limits: Limits) -> None:
        self._backend = backend
        self._groups = groups
        self._timeout_s = limits.groups_behind_max_s
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def groups(self) -> list[GroupSnapshot] | None:
        """The groups there are, by id; None until they are read for the first time.

        Where the coordinator does not answer, or the view does not reach the end of the topic in time, they
        are those of the view as it is.
        """
        if self._groups.groups() is not None:
            # What is under way may have been sent before the answer that whoever asks has seen.
            if self._next is None:
                self._next = asyncio.create_task(self._catch_up(self._running))
            await asyncio.shield(self._next)
        return self._groups.groups()

    async def _catch_up(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        header = self._backend.header(_GROUP_ID, _DESCRIBE_VERSION, _CLIENT_ID, "")
        answer = await self._backend.ask(DescribeGroup(**header), DescribeGroupResponse)
        if not answer.request and answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return  # nobody answered, of which there is a log line
        if not await self._groups.reach_end(self._timeout_s):
            log.warning("the groups topic is not read to its end, groups are listed as they are known")
