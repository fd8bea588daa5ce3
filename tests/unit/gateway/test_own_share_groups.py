"""Share groups (KIP-932) of this project's coordinator, at the gateway: `--share-groups coordinator`.

`tests/conformance/scripts/share_*.txt` have the answers and the rights beside Kafka's.
"""

from typing import Any
from unittest.mock import patch

import pytest

from gateway.apis import share_groups
from tests.harness.gateway import DELETE_GROUPS, LAYOUT, TOPICS, GatewayFixture, RawClient, played, topic_id
from tests.harness.share_frames import (
    ALTER_OFFSETS,
    DELETE_OFFSETS,
    HEARTBEAT,
    OFFSETS,
    beat,
    finds_share_groups,
)
from tests.harness.waiting import until

UNAVAILABLE, TOPIC_DENIED, INVALID_REQUEST = 15, 29, 42
SHARE_STATE_MS = 60_000


async def assigned(world: GatewayFixture, client: RawClient, group_id: str = "g") -> int:
    """Add a member that has all partitions of the topic `orders`. Return its epoch."""
    first = await client.ask(HEARTBEAT, 1, **beat(group_id, ["orders"]))
    assert first.error_code == 0
    world.core.carry_out_tasks(group_id)
    world.core.advance(1_000)
    second = await client.ask(HEARTBEAT, 1, **beat(group_id) | {"member_epoch": first.member_epoch})
    (topic,) = second.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (topic_id("orders"), list(range(TOPICS["orders"])))
    return int(second.member_epoch)


@played(expose_internal_topics=False)
async def test_sf24_internal_topics_cannot_be_consumed_by_share_groups(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    refused = await client.ask(HEARTBEAT, 1, **beat(names=["orders", LAYOUT.requests_topic]))
    assert refused.error_code == TOPIC_DENIED
    assert world.core.asked == []


@played
async def test_heartbeat_with_too_many_topic_names_is_refused(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    before = world.broker.metadata_requests
    names = [f"{number:0200}" for number in range(4_000)]
    assert (await client.ask(HEARTBEAT, 1, **beat(names=names))).error_code == INVALID_REQUEST
    assert world.broker.metadata_requests == before
    assert world.core.asked == []


@pytest.mark.parametrize("key", [ALTER_OFFSETS, DELETE_OFFSETS, DELETE_GROUPS])
@played
async def test_sp9_gateway_waits_as_long_as_a_request_is_parked(world: GatewayFixture, key: int) -> None:
    client = await finds_share_groups(world)
    await assigned(world, client)
    assert (await client.ask(HEARTBEAT, 1, **beat() | {"member_epoch": -1})).error_code == 0
    waits: list[int | None] = []
    send = world.core.send

    def sent(request: Any, timeout_ms: int | None = None) -> Any:
        waits.append(timeout_ms)
        return send(request, timeout_ms)

    with patch.object(world.core, "send", sent):
        if key == DELETE_GROUPS:
            await client.send(key, 2, groups_names=["g"])
        else:
            partitions = {"partitions": [{"partition_index": 0, "start_offset": 7}]}
            topics = [{"topic_name": "orders"} | (partitions if key == ALTER_OFFSETS else {})]
            await client.send(key, 0, group_id="g", topics=topics)
        await until(lambda: world.core.waiting == 1)
    world.core.advance(SHARE_STATE_MS)
    _, answer = await client.receive()
    error = answer.results[0].error_code if key == DELETE_GROUPS else answer.error_code
    assert error == UNAVAILABLE
    (timeout_ms,) = waits
    assert timeout_ms is not None
    assert timeout_ms > SHARE_STATE_MS


def answers_of_the_broker(world: GatewayFixture, *denied: str) -> list[dict[str, dict[str, list[int]]]]:
    """Return what the broker is asked for: partitions by topic and group. It answers with the offset 5."""
    asked: list[dict[str, dict[str, list[int]]]] = []

    def answer(request: Any) -> dict[str, Any]:
        named = {
            group.group_id: {t.topic_name: list(t.partitions) for t in group.topics}
            for group in request.groups
        }
        asked.append(named)
        return {"groups": [_of_group(group_id, topics, denied) for group_id, topics in named.items()]}

    world.broker.scripts[OFFSETS] = answer
    return asked


def _of_group(group_id: str, topics: dict[str, list[int]], denied: tuple[str, ...]) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "topics": [
            {
                "topic_name": topic,
                "partitions": [
                    {"partition_index": number, "start_offset": 5, "error_code": 29 * (topic in denied)}
                    for number in numbers
                ],
            }
            for topic, numbers in topics.items()
        ],
    }


def offsets(answer: Any) -> dict[str, dict[str, list[tuple[int, int, int]]]]:
    return {
        group.group_id: {
            topic.topic_name: [(p.partition_index, p.start_offset, p.error_code) for p in topic.partitions]
            for topic in group.topics
        }
        for group in answer.groups
    }


ORDERS = [0, 1, 2]


@played
async def test_so3_topics_the_broker_denies_are_omitted_from_share_offsets(world: GatewayFixture) -> None:
    """With `--broker-principal client` the broker checks the client's rights. A topic that the client names
    has the error.
    """
    client = await finds_share_groups(world)
    await assigned(world, client)
    answers_of_the_broker(world, "orders")
    answer = await client.ask(OFFSETS, 1, groups=[{"group_id": "g", "topics": None}])
    assert offsets(answer) == {"g": {}}
    named = [{"topic_name": "orders", "partitions": [0]}]
    answer = await client.ask(OFFSETS, 1, groups=[{"group_id": "g", "topics": named}])
    assert offsets(answer) == {"g": {"orders": [(0, 5, TOPIC_DENIED)]}}


@played
async def test_share_offsets_request_for_all_topics_has_a_partition_limit(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    groups = [f"g{number}" for number in range(4)]
    for group_id in groups:
        await assigned(world, client, group_id)
    asked = answers_of_the_broker(world)
    bound = 2 * len(ORDERS)
    with patch.object(share_groups, "FILLED_MAX_PARTITIONS", bound):
        answer = await client.ask(OFFSETS, 1, groups=[{"group_id": g, "topics": None} for g in groups])
    errors = {group.group_id: group.error_code for group in answer.groups}
    assert sorted(errors.values()) == [0, 0, INVALID_REQUEST, INVALID_REQUEST]
    (named,) = asked
    assert named == {group_id: {"orders": ORDERS} for group_id, error in errors.items() if not error}


@played(groups_per_request=2)
async def test_number_of_groups_in_a_share_offsets_request_is_limited(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    groups = [{"group_id": f"g{number}", "topics": None} for number in range(3)]
    answer = await client.ask(OFFSETS, 1, groups=groups)
    assert [group.error_code for group in answer.groups] == [0, 0, INVALID_REQUEST]
    assert len(world.core.asked) == 2
