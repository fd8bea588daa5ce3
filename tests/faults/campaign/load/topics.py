"""Requests straight on the topics, by the CoordinatorClient, which writes packs."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TypeVar

from clients.coordinator_client import CoordinatorClient
from clients.pending import ClientError
from state.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    LeavingMember,
    MemberAssignment,
    OffsetCommit,
    OffsetFetch,
    Protocol,
    TopicPartitions,
)
from tests.faults.campaign.load.classic import REBALANCE_MS, SESSION_MS, SUBSCRIPTION, TOPIC, Joined
from tests.faults.campaign.load.meter import Lost

T = TypeVar("T")
COMMIT_VERSION, FETCH_VERSION = 8, 5


class TopicsTransport:
    """See `Transport`. Members share the client, whose requests to one slot share records."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client

    async def join(self, group: str, member_id: str) -> Joined:
        answer = await outcome(
            self._client.join(
                group,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[Protocol("range", SUBSCRIPTION)],
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
            )
        )
        members = [member.member_id for member in answer.members]
        return Joined(answer.error_code, answer.member_id, answer.generation_id, answer.leader, members)

    async def sync(
        self, group: str, generation: int, member_id: str, assignments: Mapping[str, bytes]
    ) -> tuple[int, bytes]:
        answer = await outcome(
            self._client.sync(
                group,
                generation_id=generation,
                member_id=member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[MemberAssignment(*share) for share in assignments.items()],
            )
        )
        return answer.error_code, answer.assignment

    async def heartbeat(self, group: str, generation: int, member_id: str) -> int:
        return (
            await outcome(self._client.heartbeat(group, generation_id=generation, member_id=member_id))
        ).error_code

    async def commit(self, group: str, generation: int, member_id: str, partition: int, offset: int) -> int:
        request = commit_request(self._client, group, generation, member_id, partition, offset)
        answer = await outcome(self._client.send(request))
        return answer.error_code or answer.topics[0].partitions[0].error_code

    async def fetch(self, group: str, partition: int) -> int:
        request = OffsetFetch(
            **self._client.header(group, FETCH_VERSION), topics=[TopicPartitions(TOPIC, [partition])]
        )
        return (await outcome(self._client.send(request))).error_code

    async def leave(self, group: str, member_id: str) -> int:
        return (await outcome(self._client.leave(group, [LeavingMember(member_id)]))).error_code

    def close(self) -> None:
        """Nothing: an answer is matched by its correlation id, and the client is shared."""


def commit_request(
    client: CoordinatorClient, group: str, generation: int, member_id: str, partition: int, offset: int
) -> OffsetCommit:
    return OffsetCommit(
        **client.header(group, COMMIT_VERSION),
        generation_id=generation,
        member_id=member_id,
        topics=[CommittedTopic(TOPIC, [CommittedPartition(partition, offset)])],
    )


async def outcome(future: Future[T]) -> T:
    """The answer. Raises Lost."""
    try:
        return await asyncio.wrap_future(future)
    except ClientError as error:
        raise Lost(str(error)) from error
