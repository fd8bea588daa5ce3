"""Requests of the gateway's tests, and readers of their answers."""

from typing import Any

from kafka_why.contract.kafka.requests import JoinGroup
from tests.harness.gateway import GatewayFixture, RawClient, topic_id

COMMIT, OFFSET_FETCH, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 11, 12, 13, 14, 15, 16
DELETE_GROUPS, OFFSET_DELETE = 42, 47
BEAT: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "nobody"}
"""Of no member: the answer is UNKNOWN_MEMBER_ID."""


def join_fields(member_id: str = "", **more: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"subscription"}],
        **more,
    }


async def stable(world: GatewayFixture, client: RawClient, **more: Any) -> str:
    """Return the id of the only member of group g, in generation 1."""
    member_id = str((await client.ask(JOIN, 9, **join_fields(**more))).member_id)
    await client.send(JOIN, 9, **join_fields(member_id, **more))
    await world.core.wait_for(lambda: sum(isinstance(r, JoinGroup) for r in world.core.asked) == 2)
    world.core.advance(3_000)
    _, joined = await client.receive()
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, member_id)
    synced = await client.ask(
        SYNC,
        5,
        group_id="g",
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member_id, "assignment": b"everything"}],
    )
    assert (synced.error_code, synced.assignment) == (0, b"everything")
    return member_id


def commit_fields(member_id: str, *offsets: tuple[str, int, int], by_id: bool = False) -> dict[str, Any]:
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": 1 if member_id else -1,
        "member_id": member_id,
        "topics": [
            {
                **({"topic_id": topic_id(name)} if by_id else {"name": name}),
                "partitions": [
                    {"partition_index": p, "committed_offset": offset, "committed_metadata": "note"}
                ],
            }
            for name, p, offset in offsets
        ],
    }


def outcomes(response: Any) -> list[tuple[Any, int, int]]:
    """Return the (topic, partition, error code) triples of an answer."""
    return [
        (topic.name or topic.topic_id, p.partition_index, p.error_code)
        for topic in response.topics
        for p in topic.partitions
    ]


def topic_partition(name: str) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": 0}]}
