"""The view of RocketMQ's groups."""

import asyncio
from typing import Protocol

from kafka_why.contract.rocketmq.history import GroupSnapshot
from kafka_why.topic_reader import ClientError

_READ_TIMEOUT_S = 30.0


class RocketMqGroupsView(Protocol):
    """A view of RocketMQ's groups, which may be behind the coordinator. The time of `groups` grows with their
    number, so it must not run on the event loop.
    """

    def groups(self) -> list[GroupSnapshot]:
        """Return the existing groups by id."""

    def get(self, group_id: str) -> GroupSnapshot | None:
        """Return a group, or None if it is not known to exist."""

    async def reach_end(self, timeout_s: float) -> bool:
        """Wait until the view has all records that are on the topic now. Return False if the time is over
        first.
        """


async def read_groups(view: RocketMqGroupsView) -> list[GroupSnapshot]:
    """Return the groups, of all records that are on the topic now. Raises ClientError."""
    if not await view.reach_end(_READ_TIMEOUT_S):
        raise ClientError(f"the groups topic was not read within {_READ_TIMEOUT_S:.0f} s")
    return await asyncio.to_thread(view.groups)
