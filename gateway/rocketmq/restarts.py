"""Connections of earlier starts of this gateway.

The coordinator's state outlives a gateway, and the sockets do not. A client that comes back would be in the
group's table twice and get the share of its first place, and queues would be read by nobody until the old
connections expire, after up to 130 s. So a gateway that starts says so to each group that has connections of
its earlier starts, before it listens.

The clients come back one after the other, and the first one would take all queues. So for some time these
groups get no list of clients, and each client keeps the queues that it has.
"""

import asyncio
from typing import Protocol

import structlog

from gateway.rocketmq.backend import CoordinatorRequests
from gateway.rocketmq.groups_view import RocketMqGroupsView, read_groups
from kafka_why.contract.rocketmq.history import ConnectionSnapshot, GroupSnapshot
from kafka_why.contract.rocketmq.requests import GatewayStarted
from kafka_why.topic_reader import ClientError

SETTLING_S = 3.0
"""The time in which the clients come back: a Java client's next request finds the closed connection."""

log = structlog.get_logger()


class Notified(Protocol):
    """A connection whose client can be asked to rebalance."""

    def notify(self, group_id: str) -> None:
        """Notify the client, unless the connection has ended."""


class Restart:
    """A start of the gateway: its name, the id of the start, and the groups whose clients are coming back."""

    def __init__(self, gateway: str, gateway_start: str) -> None:
        self.gateway = gateway
        self.gateway_start = gateway_start
        self._settling: set[str] = set()
        self._refused: dict[tuple[Notified, str], None] = {}

    async def announce(self, coordinator: CoordinatorRequests, groups: RocketMqGroupsView) -> None:
        """Remove the connections of earlier starts from the groups of the view. Raises ClientError if a
        record cannot be written.
        """
        known = await read_groups(groups)
        if any(map(self._has_earlier, known)):
            if not await coordinator.wait_for_views():
                log.warning(
                    "the coordinator does not answer, groups may keep connections of an earlier start"
                )
            known = await read_groups(groups)
        self._settling = {group.group_id for group in known if self._has_earlier(group)}
        records = [
            GatewayStarted(group_id=it, gateway=self.gateway, gateway_start=self.gateway_start)
            for it in self._settling
        ]
        if not all(await asyncio.gather(*map(coordinator.append, records))):
            raise ClientError("the groups could not be notified that the gateway was started")

    def begin(self) -> None:
        """Begin the time in which the clients come back."""
        if self._settling:
            asyncio.get_running_loop().call_later(SETTLING_S, self._end)

    def postpones(self, group_id: str, connection: Notified) -> bool:
        """Return True if the group's clients are still coming back. This connection is notified when they
        are.
        """
        if group_id not in self._settling:
            return False
        self._refused[connection, group_id] = None
        return True

    def _end(self) -> None:
        refused, self._refused = self._refused, {}
        self._settling.clear()
        for connection, group_id in refused:
            connection.notify(group_id)

    def _has_earlier(self, group: GroupSnapshot) -> bool:
        return group.truncated or any(map(self._is_earlier, (*group.consumers, *group.producers)))

    def _is_earlier(self, it: ConnectionSnapshot) -> bool:
        return it.gateway == self.gateway and it.gateway_start != self.gateway_start
