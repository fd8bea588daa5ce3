"""Share groups (KIP-932) of this project's coordinator, at the gateway: `--share-groups coordinator`.

`tests/conformance/scripts/share_*.txt` have the answers and the rights beside Kafka's.
"""

from typing import Any
from unittest.mock import patch

import pytest

from gateway.apis import share_groups
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    ShareGroupHeartbeat,
)
from tests.harness.gateway import LAYOUT, TOPICS, GatewayFixture, RawClient, played, topic_id
from tests.harness.gateway_requests import DELETE_GROUPS
from tests.harness.share_frames import (
    ALTER_OFFSETS,
    DELETE_OFFSETS,
    HEARTBEAT,
    OFFSETS,
    beat,
    finds_share_groups,
)
from tests.harness.waiting import until
from tests.unit.gateway.test_consumer_members import image

UNKNOWN_TOPIC, UNAVAILABLE, TOPIC_DENIED, INVALID_REQUEST = 3, 15, 29, 42
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


def last_beat(world: GatewayFixture) -> ShareGroupHeartbeat:
    asked = world.core.asked[-1]
    assert isinstance(asked, ShareGroupHeartbeat)
    return asked


@played
async def test_share_group_heartbeats_reach_the_coordinator(world: GatewayFixture) -> None:
    """What a member says reaches the coordinator with what the brokers know of its topics (row SP1)."""
    client = await finds_share_groups(world)
    epoch = await assigned(world, client)
    assert last_beat(world).topics is None
    asked_of_brokers = world.broker.metadata_asked
    answer = await client.ask(HEARTBEAT, 1, **beat() | {"member_epoch": epoch})
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
    assert answer.heartbeat_interval_ms == 5_000
    assert world.broker.metadata_asked == asked_of_brokers
    named = beat(names=["orders", "absent"]) | {"member_epoch": epoch, "rack_id": "r"}
    assert (await client.ask(HEARTBEAT, 1, **named)).error_code == 0
    assert last_beat(world).topics == {"orders": image("orders"), "absent": None}
    assert (last_beat(world).rack_id, last_beat(world).principal) == ("r", "User:ANONYMOUS")
    left = await client.ask(HEARTBEAT, 1, **beat() | {"member_epoch": -1})
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert not world.broker.passed


@played(expose_internal_topics=False)
async def test_sf24_internal_topics_cannot_be_consumed_by_share_groups(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    refused = await client.ask(HEARTBEAT, 1, **beat(names=["orders", LAYOUT.requests_topic]))
    assert refused.error_code == TOPIC_DENIED
    assert world.core.asked == []


@played
async def test_heartbeat_with_too_many_topic_names_is_refused(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    before = world.broker.metadata_asked
    names = [f"{number:0200}" for number in range(4_000)]
    assert (await client.ask(HEARTBEAT, 1, **beat(names=names))).error_code == INVALID_REQUEST
    assert world.broker.metadata_asked == before
    assert world.core.asked == []


def moved(*topics: str, offset: int = 7) -> list[dict[str, Any]]:
    partitions = [{"partition_index": 0, "start_offset": offset}]
    return [{"topic_name": topic, "partitions": partitions} for topic in topics]


async def left(world: GatewayFixture, client: RawClient, group_id: str = "g") -> None:
    """An Empty group in which all partitions of the topic `orders` are initialized."""
    await assigned(world, client, group_id)
    assert (await client.ask(HEARTBEAT, 1, **beat(group_id) | {"member_epoch": -1})).error_code == 0


async def arrives(world: GatewayFixture, kind: type[Any]) -> Any:
    """Return the only request of this kind, when the coordinator has it."""
    await world.core.wait_for(lambda: any(isinstance(one, kind) for one in world.core.asked))
    (asked,) = (one for one in world.core.asked if isinstance(one, kind))
    return asked


@played
async def test_so9_so14_offsets_are_answered_after_the_share_coordinator(
    world: GatewayFixture,
) -> None:
    """No broker gets the requests. Names of topics are the brokers' to say, the rest the coordinator's."""
    client = await finds_share_groups(world)
    await left(world, client)
    images = {"orders": image("orders"), "absent": None}
    await client.send(ALTER_OFFSETS, 0, group_id="g", topics=moved("orders", "absent"))
    assert (await arrives(world, AlterShareGroupOffsets)).images == images
    assert world.core.waiting == 1
    world.core.carry_out_tasks("g")
    _, answer = await client.receive()
    assert (answer.error_code, answer.error_message) == (0, None)
    found = {topic.topic_name: (topic.topic_id, topic.partitions[0].error_code) for topic in answer.responses}
    assert found["orders"] == (topic_id("orders"), 0)
    assert found["absent"][1] == UNKNOWN_TOPIC
    topics = [{"topic_name": topic} for topic in ("orders", "absent")]
    await client.send(DELETE_OFFSETS, 0, group_id="g", topics=topics)
    assert (await arrives(world, DeleteShareGroupOffsets)).images == images
    world.core.carry_out_tasks("g")
    _, answer = await client.receive()
    found = {topic.topic_name: (topic.topic_id, topic.error_code) for topic in answer.responses}
    assert found["orders"] == (topic_id("orders"), 0)
    assert found["absent"][1] == UNKNOWN_TOPIC
    assert not world.broker.passed


@pytest.mark.parametrize("key", [ALTER_OFFSETS, DELETE_OFFSETS, DELETE_GROUPS])
@played
async def test_sp9_request_waits_as_long_as_the_coordinator_parks_it(world: GatewayFixture, key: int) -> None:
    client = await finds_share_groups(world)
    await left(world, client)
    waits: list[int | None] = []
    send = world.core.send

    def sent(request: Any, timeout_ms: int | None = None) -> Any:
        waits.append(timeout_ms)
        return send(request, timeout_ms)

    with patch.object(world.core, "send", sent):
        if key == DELETE_GROUPS:
            await client.send(key, 2, groups_names=["g"])
        else:
            topics = moved("orders") if key == ALTER_OFFSETS else [{"topic_name": "orders"}]
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
AT_5 = [(0, 5, 0), (1, 5, 0), (2, 5, 0)]


@played
async def test_so3_offsets_are_queried_for_partitions_the_coordinator_knows(world: GatewayFixture) -> None:
    """Rows SO4 and SO5: what a request names passes as it is, and that there is no group is no error."""
    client = await finds_share_groups(world)
    await assigned(world, client)
    asked = answers_of_the_broker(world)
    named = [{"topic_name": "prices", "partitions": [0, 9]}]
    groups = [{"group_id": "g", "topics": None}, {"group_id": "absent", "topics": None}]
    answer = await client.ask(OFFSETS, 1, groups=[*groups, {"group_id": "other", "topics": named}])
    assert asked == [{"g": {"orders": ORDERS}, "other": {"prices": [0, 9]}}]
    assert offsets(answer) == {
        "g": {"orders": AT_5},
        "other": {"prices": [(0, 5, 0), (9, 5, 0)]},
        "absent": {},
    }
    assert {group.error_code for group in answer.groups} == {0}


@played
async def test_so3_topics_that_the_broker_denies_are_left_out(world: GatewayFixture) -> None:
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
async def test_a_request_is_filled_with_a_bounded_number_of_partitions(world: GatewayFixture) -> None:
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
async def test_a_request_asks_about_a_bounded_number_of_groups(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    groups = [{"group_id": f"g{number}", "topics": None} for number in range(3)]
    answer = await client.ask(OFFSETS, 1, groups=groups)
    assert [group.error_code for group in answer.groups] == [0, 0, INVALID_REQUEST]
    assert len(world.core.asked) == 2
