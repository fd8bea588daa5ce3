"""What ListGroups waits for, to include every change that a client had a response about before.

`tests/e2e/test_gateway.py` has the lists of several gateways.
"""

from msgspec import UNSET
from structlog.testing import capture_logs

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import DescribeGroup
from tests.harness.gateway import GatewayFixture, played
from tests.harness.gateway_requests import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    LIST,
    OFFSET_FETCH,
    commit_fields,
    stable,
)


async def listed(world: GatewayFixture) -> set[str]:
    """Return the groups that a new client gets."""
    answer = await (await world.client()).ask(LIST, 5)
    assert answer.error_code == 0
    return {group.group_id for group in answer.groups}


@played
async def test_list_groups_waits_for_views_with_one_request(world: GatewayFixture) -> None:
    """A list has what was answered early. Whoever asks for something else gets the answer at once."""
    await listed(world)
    assert [request.waits_for_views for request in world.core.asked] == [True] * 3
    assert world.core.groups() == [], "asking for the list makes no group"
    world.core.asked.clear()
    client = await world.client()
    member_id = await stable(world, client)
    await client.ask(HEARTBEAT, 4, group_id="g", generation_id=1, member_id=member_id)
    await client.ask(COMMIT, 9, **commit_fields(member_id, ("orders", 0, 7)))
    await client.ask(OFFSET_FETCH, 7, group_id="g", topics=None)
    await client.ask(DESCRIBE, 5, groups=["g"])
    assert len(world.core.asked) == 7
    assert {request.waits_for_views for request in world.core.asked} == {UNSET}
    assert not any(b"waits_for_views" in encode(request) for request in world.core.asked)


@played
async def test_while_coordinator_is_unavailable_list_shows_last_known_groups(world: GatewayFixture) -> None:
    await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))
    world.core.away = True
    assert await listed(world) == {"g"}


@played(groups_behind_max_s=0.05)
async def test_list_groups_stops_waiting_for_a_stuck_view_and_logs_a_warning(world: GatewayFixture) -> None:
    world.core.view_is_behind = world.core.stuck = True
    await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))
    with capture_logs() as logs:
        assert await listed(world) == set()
    assert [entry["event"] for entry in logs] == [
        "the groups topic is not read to its end, ListGroups may miss the latest changes"
    ]


@played
async def test_list_groups_with_a_replica_does_not_wait_for_views(world: GatewayFixture) -> None:
    world.core.view_is_behind = world.core.has_replica = True
    assert await listed(world) == set()
    await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))
    world.core.asked.clear()
    assert await listed(world) == {"g"}
    (request,) = world.core.asked
    assert isinstance(request, DescribeGroup)
    assert (request.waits_for_views, request.lists_changed) == (True, True)
    answer = await world.ask(LIST, 5)
    (group,) = answer.groups
    assert (group.protocol_type, group.group_state, group.group_type) == ("", "Empty", "classic")
    assert [g.error_code for g in (await world.ask(DELETE_GROUPS, 2, groups_names=["g"])).results] == [0]
    assert await listed(world) == set()
