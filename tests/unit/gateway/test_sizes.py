"""A request that is too large for the requests topic has a final error, and leaves the connection open."""

from dataclasses import replace

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import OversizedRequest
from tests.harness.gateway import LAYOUT, GatewayFixture, played
from tests.harness.gateway_requests import JOIN, SYNC, join_fields, stable

FRAME_MAX_BYTES = 20_000
FAILED = ErrorCode.UNKNOWN_SERVER_ERROR

small_topic = played(layout=replace(LAYOUT, request_max_bytes=FRAME_MAX_BYTES))


@small_topic
async def test_group_rebalances_when_the_assignment_of_its_leader_is_too_large(world: GatewayFixture) -> None:
    client = await world.client()
    protocols = [{"name": "range", "metadata": bytes(FRAME_MAX_BYTES)}]
    joined = await client.ask(JOIN, 9, **join_fields(protocols=protocols))
    assert (joined.error_code, world.core.groups()[0].state) == (FAILED, "Empty")
    member_id = await stable(world, client)
    await client.send(JOIN, 9, **join_fields(member_id))
    world.core.advance(1)
    _, joined = await client.receive()
    sync = {"group_id": "g", "generation_id": joined.generation_id, "member_id": member_id}
    large = {"member_id": member_id, "assignment": bytes(FRAME_MAX_BYTES)}
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    synced = await client.ask(SYNC, 5, **sync, **named, assignments=[large])
    assert (synced.error_code, world.core.groups()[0].state) == (FAILED, "PreparingRebalance")
    synced = await client.ask(SYNC, 5, **sync, **named, assignments=[large])
    assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert [r.kind for r in world.core.asked if isinstance(r, OversizedRequest)] == [
        "JoinGroup", "SyncGroup", "SyncGroup",
    ]  # fmt: skip
