"""The other gateways of this coordinator, and the connections of those that died.

The connections of a dead gateway stay in their groups' tables until they expire, after up to 130 s. Meanwhile
its clients, which have connected to another gateway, are in the tables twice. So the gateways are members of
a group in the coordinator: the session of a dead one ends, and the leader of the next generation reports it
to each group that has connections of a gateway that is no member.

The session is in the log's time, so a late coordinator ends none, and a replay ends the same ones. A lease in
each group's own state would need no leader, but records of every gateway for every group, all the time; here
each gateway writes one record in three seconds.

The report may be wrong about a gateway that was only slow. The coordinator then closes the connections that
it removed, and their clients connect and register again.
"""

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from clients.coordinator_client import Header
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, PARKED_TIMEOUT_MS
from gateway.log_text import RateLimitedWarning
from gateway.rocketmq.backend import CoordinatorRequests
from gateway.rocketmq.groups_view import RocketMqGroupsView, read_groups
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, Protocol, SyncGroup
from kafka_why.contract.kafka.responses import HeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.rocketmq.history import GroupSnapshot
from kafka_why.contract.rocketmq.requests import GatewayStarted
from kafka_why.topic_reader import ClientError

GROUP_ID = "__rocketmq_gateways"
HEARTBEAT_INTERVAL_S = 3.0
_SESSION_TIMEOUT_MS = 10_000
_REBALANCE_TIMEOUT_MS = 60_000
"""Long, because a late coordinator must not remove a member. That of a dead gateway ends with its session."""
_PROTOCOL_TYPE = "rocketmq-gateways"
_VERSION = 3
"""Of all requests: that of JoinGroup is the last one without the need of a member id."""
_ENDED = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
"""The errors of a heartbeat after which a member joins again. Others say that no answer came."""

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
        self._known: set[str] = set()
        """The gateways that were members when this one was the leader."""
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
            reporting = asyncio.create_task(self._report(members))
            try:
                await self._stay()
            finally:
                reporting.cancel()

    async def _join(self) -> set[str]:
        """Join the next generation. Return the names of its gateways, or none if another one is the leader.
        Raises ClientError.
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
        _check(joined.error_code)
        self._member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        synced = await self._coordinator.send(SyncGroup(**self._header(), **self._member), ANSWER_TIMEOUT_MS)
        if synced.error_code not in _ENDED:
            _check(synced.error_code)
        return {member.metadata.decode(errors="replace") for member in joined.members}

    async def _stay(self) -> None:
        """Send heartbeats until the generation is over. They do not wait for the answers to earlier ones."""
        is_over = asyncio.Event()

        def note(beat: "asyncio.Future[HeartbeatResponse]") -> None:
            if beat.result().error_code in _ENDED:
                is_over.set()

        while not is_over.is_set():
            self._beat().add_done_callback(note)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await is_over.wait()

    async def _report(self, members: set[str]) -> None:
        """Report the gateways that are no members, as soon as that is possible."""
        while members:
            self._known |= members
            try:
                if await self._reported(members):
                    return
            except ClientError as error:
                self._warning.add(error=str(error))
            await asyncio.sleep(self._interval_s)

    async def _reported(self, members: set[str]) -> bool:
        """Report the gateways that are no members to their groups. Return False if the generation is over, or
        the coordinator late. Raises ClientError.

        A gateway joins before it has clients. So if the generation lasts until the groups have been read, a
        living gateway that has connections in them is a member.
        """
        if not await self._coordinator.wait_for_views():
            return False
        groups = await read_groups(self._groups)
        if (await self._beat()).error_code is not ErrorCode.NONE:
            return False
        gone = (self._known | {name for group in groups for name in _gateways(group)}) - members - {""}
        records = [
            GatewayStarted(group_id=group.group_id, gateway=name, gateway_start="")
            for group in groups
            for name in gone
            if group.truncated or name in _gateways(group)
        ]
        if records:
            log.warning("gateways are gone", gateways=sorted(gone), groups=len(records))
        if not all(await asyncio.gather(*map(self._coordinator.append, records))):
            return False
        self._known = set(members)
        return True

    def _beat(self) -> "asyncio.Future[HeartbeatResponse]":
        return self._coordinator.send(Heartbeat(**self._header(), **self._member))

    def _header(self) -> Header:
        return self._coordinator.header(GROUP_ID, _VERSION, self._gateway)


def _check(error_code: ErrorCode) -> None:
    """Raise ClientError unless there is no error."""
    if error_code is not ErrorCode.NONE:
        raise ClientError(f"the gateway cannot join group {GROUP_ID}: {error_code.name}")


def _gateways(group: GroupSnapshot) -> set[str]:
    """Return the gateways that have connections of a group."""
    return {it.gateway for it in (*group.consumers, *group.producers)}
