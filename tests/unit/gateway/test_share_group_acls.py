"""ACLs of share groups (KIP-932), which pass to the brokers: what KafkaApis checks."""

from functools import partial
from typing import Any
from uuid import UUID

import pytest

from gateway.apis.context import CheckedTopics, ShareSession
from gateway.authorization.acls import Operation, ResourceType
from gateway.upstream.share_groups import Coordinators
from tests.harness.gateway import LIST, GatewayFixture, Right, topic_id
from tests.harness.gateway import played as any_played
from tests.harness.share_frames import (
    ACKNOWLEDGE,
    ALTER_OFFSETS,
    DELETE_OFFSETS,
    DESCRIBE,
    FETCH,
    HEARTBEAT,
    OFFSETS,
    beat,
    error_of,
    fetched,
    finds_share_groups,
    listed,
)

played = partial(any_played, share_groups=Coordinators.BROKERS)
TOPIC_DENIED, GROUP_DENIED, UNKNOWN_TOPIC_ID, NO_SESSION = 29, 30, 100, 122
FAILED, INVALID_REQUEST = -1, 42
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


IN_GROUP: Right = (Operation.READ, GROUP, "g")
ORDERS, PRICES = ((Operation.READ, TOPIC, name) for name in ("orders", "prices"))
READER = IN_GROUP, ORDERS


@played(rights=[(Operation.READ, GROUP, "g"), (Operation.DESCRIBE, GROUP, "g")])
async def test_share_member_needs_read_on_its_group_and_describe_on_topics(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.answers[HEARTBEAT] = {"error_code": 0, "member_epoch": 1}
    assert error_of(await client.ask(HEARTBEAT, 1, **beat("another"))) == GROUP_DENIED
    assert error_of(await client.ask(HEARTBEAT, 1, **beat(names=["orders"]))) == TOPIC_DENIED
    session = await client.ask(FETCH, 2, **fetched("orders", group_id="another"))
    assert session.error_code == GROUP_DENIED
    assert not world.broker.passed
    assert (await client.ask(HEARTBEAT, 1, **beat())).member_epoch == 1


def topics_passed(world: GatewayFixture, key: int) -> list[list[UUID]]:
    """Return the topics of each such request that a broker got."""
    return [[topic.topic_id for topic in request.topics] for request in world.broker.requests(key)]


@pytest.mark.parametrize(("topic", "error"), [("prices", TOPIC_DENIED), ("nothing", UNKNOWN_TOPIC_ID)])
@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("others", [["orders"], []])
@played(rights=READER)
async def test_partitions_of_an_unreadable_topic_get_the_authorization_error(
    world: GatewayFixture, topic: str, error: int, key: int, others: list[str]
) -> None:
    """Row SF10. Also a request of which nothing is left passes: the broker counts it."""
    world.broker.answers[key] = {"error_code": 0}
    client = await finds_share_groups(world)
    answer = await client.ask(key, 2, **fetched(*others, topic, offsets=(5, 7)))
    assert answer.error_code == 0
    ((refused_id, (partition,)),) = [(one.topic_id, one.partitions) for one in answer.responses]
    assert (refused_id, partition.partition_index, partition.error_code) == (topic_id(topic), 0, error)
    if key == FETCH:
        assert partition.acknowledge_error_code == error
    assert topics_passed(world, key) == [[topic_id(name) for name in others]]


@played(rights=READER)
async def test_share_session_ends_when_acls_deny_one_of_its_topics(world: GatewayFixture) -> None:
    """A request names only what is new in its session, and a new session names all."""
    world.broker.answers[FETCH] = {"error_code": 0}
    client = await finds_share_groups(world)
    assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0
    world.allow(IN_GROUP, ORDERS, PRICES)
    assert (await client.ask(FETCH, 2, **fetched(epoch=1))).error_code == 0
    world.allow(IN_GROUP, PRICES)
    assert (await client.ask(FETCH, 2, **fetched(epoch=2))).error_code == NO_SESSION
    (refused,) = (await client.ask(FETCH, 2, **fetched("orders"))).responses
    assert [one.error_code for one in refused.partitions] == [TOPIC_DENIED]


@played(rights=READER)
async def test_share_session_that_omitted_a_denied_topic_ends_when_acls_change(world: GatewayFixture) -> None:
    """The member does not name the topic again by itself."""
    world.broker.answers[FETCH] = {"error_code": 0}
    client = await finds_share_groups(world)
    assert len((await client.ask(FETCH, 2, **fetched("orders", "prices"))).responses) == 1
    assert (await client.ask(FETCH, 2, **fetched(epoch=1))).error_code == 0
    world.allow(IN_GROUP, ORDERS, PRICES)
    assert (await client.ask(FETCH, 2, **fetched(epoch=2))).error_code == NO_SESSION
    assert not (await client.ask(FETCH, 2, **fetched("orders", "prices"))).responses
    assert topics_passed(world, FETCH)[-1] == [topic_id("orders"), topic_id("prices")]


@played(rights=READER)
async def test_share_session_cannot_continue_on_another_connection(world: GatewayFixture) -> None:
    world.broker.answers[FETCH] = {"error_code": 0}
    client = await finds_share_groups(world)
    assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0
    elsewhere = await world.client()
    passed = len(world.broker.messages)
    for epoch in (1, 2, 2**31 - 1, -2):
        for topics in ((), ("orders",)):
            assert (await elsewhere.ask(FETCH, 2, **fetched(*topics, epoch=epoch))).error_code == NO_SESSION
    assert len(world.broker.messages) == passed
    assert (await client.ask(FETCH, 2, **fetched(epoch=1))).error_code == 0


def members_passed(world: GatewayFixture) -> list[str]:
    """Return the member of each request about a share session that a broker got."""
    return [request.member_id for request in world.broker.requests(FETCH, ACKNOWLEDGE)]


@played(rights=READER)
async def test_broker_sees_a_connection_specific_member_id(world: GatewayFixture) -> None:
    """So nothing that another connection sends is about this one's session, whatever the epoch."""
    world.broker.answers |= {FETCH: {"error_code": 0}, ACKNOWLEDGE: {"error_code": 0}}
    members = set()
    for client in (await finds_share_groups(world), await world.client()):
        world.broker.messages.clear()
        assert not (await client.ask(FETCH, 2, **fetched("orders", "prices"))).error_code
        assert not (await client.ask(FETCH, 1, **fetched("orders", epoch=1, offsets=(5, 7)))).error_code
        for epoch in (0, 2, -1):
            assert not (await client.ask(ACKNOWLEDGE, 2, **fetched("orders", epoch=epoch))).error_code
        assert not (await client.ask(FETCH, 2, **fetched(epoch=-1))).error_code
        assert len(members_passed(world)) == 6
        members.update(members_passed(world))
    assert len(members) == 2 and "m" not in members


@played(rights=READER)
async def test_share_session_continues_only_after_the_broker_accepted_it(world: GatewayFixture) -> None:
    """A broker that refuses a beginning keeps the session of before, with other topics."""
    client = await finds_share_groups(world)
    for error, continues in ((0, 0), (INVALID_REQUEST, NO_SESSION), (0, 0), (FAILED, NO_SESSION)):
        world.broker.answers[FETCH] = {"error_code": error}
        await client.ask(FETCH, 2, **fetched("orders"))
        world.broker.answers[FETCH] = {"error_code": 0}
        assert (await client.ask(FETCH, 2, **fetched(epoch=1))).error_code == continues
    world.broker.open.clear()
    await client.send(FETCH, 2, **fetched("orders"))
    await client.send(FETCH, 2, **fetched(epoch=1))
    passed = len(world.broker.messages)
    world.broker.open.set()
    assert [(await client.receive())[1].error_code for _ in range(2)] == [0, NO_SESSION]
    assert len(world.broker.messages) <= passed + 1


def test_earlier_share_session_start_is_void_after_a_newer_one() -> None:
    """The broker may be busy with the second when it has answered the first."""
    accepted = bytes(20)
    session, both = (
        ShareSession(),
        [CheckedTopics({topic_id(name)}, 1, False) for name in ("orders", "prices")],
    )
    first, second = (session.begin(topics) for topics in both)
    first(accepted)
    assert session.checked is None
    second(accepted)
    assert session.checked is both[1]


@played(rights=READER)
async def test_share_session_ends_when_an_added_or_forgotten_topic_is_denied(world: GatewayFixture) -> None:
    world.broker.answers[FETCH] = {"error_code": 0}
    client = await finds_share_groups(world)
    forgotten = [{"topic_id": topic_id("prices"), "partitions": [0]}]
    for later in (
        fetched("prices", epoch=1),
        fetched("prices", epoch=1) | {"forgotten_topics_data": forgotten},
    ):
        world.allow(IN_GROUP, ORDERS, PRICES)
        assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0
        assert (await client.ask(FETCH, 2, **later)).error_code == 0
        world.allow(IN_GROUP, ORDERS)
        assert (await client.ask(FETCH, 2, **fetched(epoch=2))).error_code == NO_SESSION
        assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0
        assert (await client.ask(FETCH, 2, **fetched(epoch=1))).error_code == 0


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("member_id", [None, "", "m" * 37])
@played(rights=READER)
async def test_invalid_member_id_gets_no_share_session(
    world: GatewayFixture, member_id: str | None, key: int
) -> None:
    """KafkaApis.isMemberIdValid."""
    client = await finds_share_groups(world)
    answer = await client.ask(key, 2, **fetched("orders") | {"member_id": member_id})
    assert answer.error_code == INVALID_REQUEST
    assert not world.broker.passed


def assigned(*topics: str) -> dict[str, Any]:
    return {
        "assignment": {"topic_partitions": [{"topic_name": topic, "partitions": [0]} for topic in topics]}
    }


@played(rights=[(Operation.DESCRIBE, GROUP, "g"), (Operation.DESCRIBE, TOPIC, "orders")])
async def test_describing_a_share_group_needs_describe_on_group_and_topics(world: GatewayFixture) -> None:
    """Rows SD1 and SD4. The operations are the client's, not the gateway's."""
    client = await finds_share_groups(world)
    shown = {"group_id": "g", "members": [assigned("orders")], "authorized_operations": set(range(2, 9))}
    world.broker.answers[DESCRIBE] = {"groups": [shown]}
    asked = {"group_ids": ["g", "another"], "include_authorized_operations": True}
    found = {group.group_id: group for group in (await client.ask(DESCRIBE, 1, **asked)).groups}
    assert (found["another"].error_code, found["g"].error_code) == (GROUP_DENIED, 0)
    assert found["g"].authorized_operations == {Operation.DESCRIBE}
    world.broker.answers[DESCRIBE] = {
        "groups": [{"group_id": "g", "members": [assigned("orders", "prices")]}]
    }
    (hidden,) = (await client.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (hidden.error_code, hidden.members) == (TOPIC_DENIED, [])


def offsets_of(group_id: str, *topics: str) -> dict[str, Any]:
    partition = {"partition_index": 0, "start_offset": 5, "leader_epoch": 1, "lag": 3}
    return {
        "group_id": group_id,
        "topics": [{"topic_name": topic, "partitions": [partition]} for topic in topics],
    }


@played(
    rights=[
        (Operation.DESCRIBE, GROUP, "g"),
        (Operation.DESCRIBE, GROUP, "h"),
        (Operation.DESCRIBE, TOPIC, "orders"),
    ]
)
async def test_describing_share_offsets_needs_describe_on_groups_and_topics(world: GatewayFixture) -> None:
    """Rows SO3 and SO4: topics that are not named are left out, those that are have an error."""
    client = await finds_share_groups(world)
    topics = "orders", "prices"
    world.broker.answers[OFFSETS] = {"groups": [offsets_of("g", *topics), offsets_of("h", *topics)]}
    named = [{"topic_name": topic, "partitions": [0]} for topic in topics]
    asked = [{"group_id": "g", "topics": None}, {"group_id": "h", "topics": named}]
    answer = await client.ask(OFFSETS, 1, groups=[*asked, {"group_id": "another", "topics": None}])
    found = {
        (group.group_id, topic.topic_name): (p.start_offset, p.lag, p.error_code)
        for group in answer.groups
        for topic in group.topics
        for p in topic.partitions
    }
    assert found == {
        ("g", "orders"): (5, 3, 0),
        ("h", "orders"): (5, 3, 0),
        ("h", "prices"): (-1, -1, TOPIC_DENIED),
    }
    assert {group.group_id: group.error_code for group in answer.groups}["another"] == GROUP_DENIED


@pytest.mark.parametrize(
    ("key", "operation"), [(ALTER_OFFSETS, Operation.READ), (DELETE_OFFSETS, Operation.DELETE)]
)
@played(rights=lambda operation: [(operation, GROUP, "g"), (Operation.READ, TOPIC, "orders")])
async def test_altering_share_offsets_needs_rights_on_the_group_and_its_topics(
    world: GatewayFixture, key: int, operation: Operation
) -> None:
    client = await finds_share_groups(world)
    world.broker.scripts[key] = lambda request: {
        "responses": [{"topic_name": topic.topic_name} for topic in request.topics]
    }
    partitions = {"partitions": [{"partition_index": 0, "start_offset": 0}]} if key == ALTER_OFFSETS else {}
    topics = [{"topic_name": topic, **partitions} for topic in ("orders", "prices")]
    assert (await client.ask(key, 0, group_id="another", topics=topics)).error_code == GROUP_DENIED
    assert not world.broker.passed
    answer = await client.ask(key, 0, group_id="g", topics=topics)
    assert [topic.topic_name for topic in answer.responses] == ["orders", "prices"]
    passed = world.broker.requests()[-1]
    assert [topic.topic_name for topic in passed.topics] == ["orders"]


@played(rights=[(Operation.DESCRIBE, GROUP, "seen")])
async def test_list_contains_only_share_groups_the_client_may_describe(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.answers[LIST] = listed(("seen", "share"), ("hidden", "share"))
    assert [group.group_id for group in (await client.ask(LIST, 5)).groups] == ["seen"]
