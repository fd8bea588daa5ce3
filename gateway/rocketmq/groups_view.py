"""The view of RocketMQ's groups."""

from typing import Protocol

from kafka_why.contract.rocketmq.snapshot import GroupSnapshot


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
