"""The other gateways of this coordinator, and the removal of the connections of dead gateways and of earlier
starts.

The connections of a dead gateway stay in their groups' tables until they expire, after up to 130 s. Meanwhile
the dead gateway's clients, which have connected to another gateway, are in the tables twice. So the gateways
are members of a group in the coordinator. When a gateway dies, its session ends. The leader of the next
generation then looks for groups with connections of a gateway that is not a member, and reports this gateway
to these groups.

The session is in the log's time, so a late coordinator ends no session, and a replay ends the same sessions.
A lease in each group's own state would need no leader, but records of every gateway for every group, all the
time. With the group of gateways, each gateway writes one record in three seconds.

The report may be wrong about a gateway that was only slow. The coordinator then closes the connections that
it removed, and their clients connect and register again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from clients.coordinator_client import Header
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, PARKED_TIMEOUT_MS
from gateway.coordinator.groups import TopicGroups
from gateway.log_text import RateLimitedWarning
from gateway.rocketmq.backend import CoordinatorRequests
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, Protocol, SyncGroup
from kafka_why.contract.kafka.responses import HeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.rocketmq.history import ConnectionSnapshot, GroupSnapshot
from kafka_why.contract.rocketmq.requests import GatewayStarted
from kafka_why.topic_reader import ClientError

# Connections of earlier starts of this gateway.
#
# The coordinator's state outlives a gateway, and the sockets do not. A client that comes back would be in the
# group's table twice, and get only the queues of its first entry. Nobody would read the queues of the second
# entry until the old connections expire, after up to 130 s. So before a gateway listens, it notifies each
# group that has connections of its earlier starts.
#
# The clients come back one after the other, and the first client would take all queues. So for some time the
# clients of these groups get no list of clients, and each client keeps the queues that it has.


# The view of RocketMQ's groups.


_READ_TIMEOUT_S = 30.0


RocketMqGroupsView = TopicGroups[GroupSnapshot]


async def read_groups(view: RocketMqGroupsView) -> list[GroupSnapshot]:
    """Wait until the view has all records that are on the topic now, and return its groups. Raises
    ClientError.
    """
    if not await view.reach_end(_READ_TIMEOUT_S):
        raise ClientError(f"the groups topic was not read within {_READ_TIMEOUT_S:.0f} s")
    return await asyncio.to_thread(view.groups)


SETTLING_S = 3.0
"""The time in which the clients come back. A Java client notices the closed connection at its next
request.
"""


class Restart:
    """A start of the gateway: its name, the id of the start, and the groups whose clients are coming back."""

    def __init__(self, gateway: str, gateway_start: str) -> None:
        self.gateway = gateway
        self.gateway_start = gateway_start
        self._settling: set[str] = set()
        """The groups whose clients are coming back."""
        self._postponed: dict[tuple[Callable[[str], None], str], None] = {}
        """The `notify` functions of refused requests, each with the group id."""

    async def announce(self, coordinator: CoordinatorRequests, groups: RocketMqGroupsView) -> None:
        """Remove the connections of earlier starts from the groups of the view. Raises ClientError if a
        record cannot be written.
        """
        all_groups = await read_groups(groups)
        # The topic may lag, and still show connections that have been removed, so it is read again.
        if any(map(self._has_earlier_connections, all_groups)):
            if not await coordinator.wait_for_views():
                log.warning(
                    "the coordinator does not answer, groups may keep connections of an earlier start"
                )
            all_groups = await read_groups(groups)
        self._settling = {group.group_id for group in all_groups if self._has_earlier_connections(group)}
        records = [
            GatewayStarted(group_id=group_id, gateway=self.gateway, gateway_start=self.gateway_start)
            for group_id in self._settling
        ]
        if not all(await asyncio.gather(*map(coordinator.backend.append, records))):
            raise ClientError("the groups could not be notified that the gateway was started")

    def begin(self) -> None:
        """Begin the period in which the clients come back."""
        if self._settling:
            asyncio.get_running_loop().call_later(SETTLING_S, self._end_settling)

    def postpones(self, group_id: str, notify: Callable[[str], None]) -> bool:
        """Return True if the group's clients are still coming back. Then the caller refuses the request, and
        `notify` is called at the end of the period.
        """
        if group_id not in self._settling:
            return False
        self._postponed[notify, group_id] = None
        return True

    def _end_settling(self) -> None:
        """End the period, and notify the clients whose requests were refused in it."""
        postponed, self._postponed = self._postponed, {}
        self._settling.clear()
        for notify, group_id in postponed:
            notify(group_id)

    def _has_earlier_connections(self, group: GroupSnapshot) -> bool:
        # A truncated snapshot may omit connections.
        return group.truncated or any(map(self._is_of_earlier_start, (*group.consumers, *group.producers)))

    def _is_of_earlier_start(self, connection: ConnectionSnapshot) -> bool:
        return connection.gateway == self.gateway and connection.gateway_start != self.gateway_start


GROUP_ID = "__rocketmq_gateways"
HEARTBEAT_INTERVAL_S = 3.0
_SESSION_TIMEOUT_MS = 10_000
_REBALANCE_TIMEOUT_MS = 60_000
"""Long, because a late coordinator must not remove a member. A dead gateway's member is removed by its
session.
"""
_PROTOCOL_TYPE = "rocketmq-gateways"
_VERSION = 3
"""The version of all requests. It is the last version in which a first JoinGroup needs no member id."""
_REJOIN_ERRORS = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
}
"""The errors of a heartbeat after which a member joins again. All other errors mean that no answer came."""

log = structlog.get_logger()


class Peers:
    """The membership of a gateway in the group of all gateways."""

    def __init__(
        self,
        gateway: str,
        coordinator: CoordinatorRequests,
        groups: RocketMqGroupsView,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
    ) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._groups = groups
        self._interval_s = heartbeat_interval_s
        self._member: dict[str, Any] = {"member_id": "", "generation_id": -1}
        """The member's fields in requests."""
        self._earlier_members: set[str] = set()
        """The gateways that were members when this gateway was the leader."""
        self._warning = RateLimitedWarning("gateways may not notice that another one died", "attempts")

    async def follow(self) -> None:
        """Stay a member, and report gateways that are gone, until cancelled."""
        while True:
            try:
                members = await self._join()
            except ClientError as error:
                self._warning.add(error=str(error))
                await asyncio.sleep(self._interval_s)
                continue
            reporting = asyncio.create_task(self._report_gone(members))
            try:
                await self._stay()
            finally:
                reporting.cancel()

    async def _join(self) -> set[str]:
        """Join the next generation. Raises ClientError.

        Return the names of its gateways, or an empty set if another gateway is the leader.
        """
        joined = await self._coordinator.send(
            JoinGroup(
                **self._header(),
                session_timeout_ms=_SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
                member_id=self._member["member_id"],
                protocol_type=_PROTOCOL_TYPE,
                protocols=[Protocol("name", self._gateway.encode())],
            ),
            PARKED_TIMEOUT_MS,
        )
        if joined.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member["member_id"] = ""
        _raise_on_error(joined.error_code)
        self._member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        synced = await self._coordinator.send(SyncGroup(**self._header(), **self._member), ANSWER_TIMEOUT_MS)
        if synced.error_code not in _REJOIN_ERRORS:  # else the first heartbeat gets the error, too
            _raise_on_error(synced.error_code)
        return {member.metadata.decode(errors="replace") for member in joined.members}

    async def _stay(self) -> None:
        """Send heartbeats until the generation is over. A heartbeat does not wait for earlier answers."""
        is_over = asyncio.Event()

        def check(heartbeat: "asyncio.Future[HeartbeatResponse]") -> None:
            if heartbeat.result().error_code in _REJOIN_ERRORS:
                is_over.set()

        while not is_over.is_set():
            self._send_heartbeat().add_done_callback(check)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await is_over.wait()

    async def _report_gone(self, members: set[str]) -> None:
        """Report the gateways that are not members, and retry until that succeeds. `members` is empty if
        another gateway is the leader, which reports them.
        """
        self._earlier_members |= members
        while members:
            try:
                if await self._try_report(members):
                    return
            except ClientError as error:
                self._warning.add(error=str(error))
            await asyncio.sleep(self._interval_s)

    async def _try_report(self, members: set[str]) -> bool:
        """Report the gateways that are not members to their groups. Raises ClientError.

        Return False if the generation is over, or the coordinator does not answer in time.

        A gateway joins before it has clients. So if the generation lasts until the groups have been read, a
        living gateway that has connections in them is a member.
        """
        if not await self._coordinator.wait_for_views():
            return False
        groups = await read_groups(self._groups)
        if (await self._send_heartbeat()).error_code is not ErrorCode.NONE:
            return False
        in_groups = {name for group in groups for name in _gateways(group)}
        gone = (self._earlier_members | in_groups) - members - {""}
        # With an empty `gateway_start`, the coordinator removes all connections of the gateway. A truncated
        # snapshot may omit connections, so its group is notified in any case.
        records = [
            GatewayStarted(group_id=group.group_id, gateway=name, gateway_start="")
            for group in groups
            for name in gone
            if group.truncated or name in _gateways(group)
        ]
        if records:
            log.warning("gateways are gone", gateways=sorted(gone), groups=len(records))
        if not all(await asyncio.gather(*map(self._coordinator.backend.append, records))):
            return False
        self._earlier_members = set(members)
        return True

    def _send_heartbeat(self) -> "asyncio.Future[HeartbeatResponse]":
        return self._coordinator.send(Heartbeat(**self._header(), **self._member))

    def _header(self) -> Header:
        return self._coordinator.header(GROUP_ID, _VERSION, self._gateway)


def _raise_on_error(error_code: ErrorCode) -> None:
    if error_code is not ErrorCode.NONE:
        raise ClientError(f"the gateway cannot join group {GROUP_ID}: {error_code.name}")


def _gateways(group: GroupSnapshot) -> set[str]:
    """Return the names of the gateways that have connections in the group."""
    return {connection.gateway for connection in (*group.consumers, *group.producers)}
