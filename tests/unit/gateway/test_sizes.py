"""A request that is too large for the requests topic has a final error, and leaves the connection open."""

from dataclasses import replace

from state.errors import ErrorCode
from state.kafka.requests import OversizedRequest
from tests.harness.gateway import LAYOUT, GatewayFixture, played
from tests.harness.gateway_requests import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    OFFSET_FETCH,
    SYNC,
    commit_fields,
    join_fields,
    outcomes,
    stable,
)

FRAME_MAX_BYTES = 20_000
LARGE = "g" * FRAME_MAX_BYTES
FAILED = ErrorCode.UNKNOWN_SERVER_ERROR

small_topic = played(layout=replace(LAYOUT, request_max_bytes=FRAME_MAX_BYTES))


@small_topic
async def test_every_group_request_that_is_too_large_gets_the_final_error(world: GatewayFixture) -> None:
    ask = (await world.client()).ask
    named = {"generation_id": 1, "member_id": "m", "group_id": LARGE}
    assert (await ask(HEARTBEAT, 4, **named)).error_code == FAILED
    assert (await ask(LEAVE, 4, group_id=LARGE, members=[])).error_code == FAILED
    commit = commit_fields("", ("orders", 0, 5)) | {"group_id": LARGE}
    assert outcomes(await ask(COMMIT, 8, **commit)) == [("orders", 0, FAILED)]
    fetched = await ask(OFFSET_FETCH, 8, groups=[{"group_id": LARGE, "topics": None}])
    assert [group.error_code for group in fetched.groups] == [FAILED]
    assert [g.error_code for g in (await ask(DESCRIBE, 5, groups=[LARGE])).groups] == [FAILED]
    deleted = await ask(DELETE_GROUPS, 2, groups_names=[LARGE])
    assert [group.error_code for group in deleted.results] == [FAILED]
    assert world.core.asked == []
    assert (await ask(DESCRIBE, 5, groups=["g"])).groups[0].error_code == 0


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
