"""Kafka's wire protocol to the gateway: a connection for each member, with one request at a time."""

from collections.abc import Mapping
from typing import Any

from bench.load.connection import Connection
from bench.load.frames import COMMIT, FETCH, HEARTBEAT, JOIN, LEAVE, SYNC, Api
from bench.load.load_result import WrongAnswer
from connections.address import Address
from tests.faults.campaign.load.classic import REBALANCE_MS, SESSION_MS, SUBSCRIPTION, TOPIC, Joined
from tests.faults.campaign.load.meter import Lost


class GatewayTransport:
    """See `Transport`. It connects again with the next request."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def join(self, group: str, member_id: str) -> Joined:
        answer = await self.ask(
            JOIN,
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
        )
        members = [member.member_id for member in answer.members]
        return Joined(answer.error_code, answer.member_id, answer.generation_id, answer.leader, members)

    async def sync(
        self, group: str, generation: int, member_id: str, assignments: Mapping[str, bytes]
    ) -> tuple[int, bytes]:
        answer = await self.ask(
            SYNC,
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": one, "assignment": share} for one, share in assignments.items()],
        )
        return answer.error_code, bytes(answer.assignment)

    async def heartbeat(self, group: str, generation: int, member_id: str) -> int:
        answer = await self.ask(HEARTBEAT, group_id=group, generation_id=generation, member_id=member_id)
        return int(answer.error_code)

    async def commit(self, group: str, generation: int, member_id: str, partition: int, offset: int) -> int:
        committed = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
        answer = await self.ask(
            COMMIT,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[{"name": TOPIC, "partitions": [{**committed, "committed_metadata": ""}]}],
        )
        return int(answer.topics[0].partitions[0].error_code)

    async def fetch(self, group: str, partition: int) -> int:
        answer = await self.ask(
            FETCH, group_id=group, topics=[{"name": TOPIC, "partition_indexes": [partition]}]
        )
        return int(answer.error_code)

    async def leave(self, group: str, member_id: str) -> int:
        answer = await self.ask(LEAVE, group_id=group, members=[{"member_id": member_id, "reason": None}])
        return int(answer.error_code)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def ask(self, api: Api, **fields: Any) -> Any:
        """The answer. Raises Lost."""
        try:
            if self._connection is None:
                self._connection = await Connection.open(self._address)
            return await self._connection.ask(api, **fields)
        except (OSError, WrongAnswer) as error:
            self.close()
            raise Lost(str(error)) from error
