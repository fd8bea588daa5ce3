"""Requests whose work grows with what exists, not with what they name, take the event loop in slices."""

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_key import ApiKey
from msgspec import UNSET
from structlog.testing import capture_logs

from gateway.apis import slices
from gateway.apis.slices import Slices, batches
from gateway.authorization.acls import CLUSTER_NAME, Operation
from gateway.authorization.authorizer import Authorizer
from gateway.coordinator.groups import KnownGroup
from gateway.metrics.numbers import GatewayCounts
from gateway.net.limits.buffers import WriteBufferLimit
from gateway.net.writing import ResponseWriter
from gateway.wire import codec
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
)
from kafka_why.contract.messages import ErrorCode
from tests.harness.gateway import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    LIST,
    OFFSET_FETCH,
    GatewayFixture,
    RawClient,
    commit_fields,
    played,
    stable,
)
from tests.unit.gateway.test_server import beat, hold, until_asked

MANY = 3_000
BATCH = len(next(batches(range(MANY))))
LIST_TRANSACTIONS, METADATA = 66, 3


class Turns(Authorizer):
    """Allows all on names with an even number, and counts the decisions in each turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.decided: Counter[int] = Counter()

    def _decide(self, principal: str, address: str, operation: Operation, kind: Any, name: str) -> bool:
        if name == CLUSTER_NAME:
            return operation is not Operation.DESCRIBE
        self.decided[self.turn] += 1
        return int(name.removeprefix("name-")) % 2 == 0

    async def count_turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1


def known(number: int) -> list[KnownGroup]:
    return [KnownGroup(f"name-{n:06d}", "Empty", id_hash=n) for n in range(number)]


def listing(world: GatewayFixture, number: int) -> None:
    """Let so many groups exist."""
    groups = known(number)
    world.core.groups = lambda: groups  # type: ignore[method-assign]
    world.core.configured_group_ids = lambda: [group.group_id for group in groups]  # type: ignore[method-assign]


def ids(answer: Any) -> list[str]:
    return [group.group_id for group in answer.groups]


async def list_groups(world: GatewayFixture, client: RawClient) -> list[str]:
    listing(world, MANY)
    return ids(await client.ask(LIST, 5))


async def list_transactions(world: GatewayFixture, client: RawClient) -> list[str]:
    states = [
        {"transactional_id": f"name-{n:06d}", "producer_id": n, "transaction_state": ""} for n in range(MANY)
    ]
    world.broker.answers[LIST_TRANSACTIONS] = {"transaction_states": states}
    answer = await client.ask(LIST_TRANSACTIONS, 0)
    return [state.transactional_id for state in answer.transaction_states]


async def metadata_of_all(world: GatewayFixture, client: RawClient) -> list[str]:
    world.broker.topics = {f"name-{n:06d}": 1 for n in range(MANY)}
    answer = await client.ask(METADATA, 9, topics=None, include_topic_authorized_operations=True)
    assert {frozenset(topic.authorized_operations) for topic in answer.topics} != {frozenset()}
    return [topic.name for topic in answer.topics]


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slice have no more than one batch of entries."""
    monkeypatch.setattr(slices, "_SLICE_S", -1.0)


@pytest.mark.parametrize(
    ("ask", "decisions"), [(list_groups, 1), (list_transactions, 1), (metadata_of_all, 9)]
)
@pytest.mark.usefixtures("no_time")
@played(authorizer=lambda: Turns())
async def test_long_list_is_sent_in_batches_one_per_loop_iteration(
    world: GatewayFixture, ask: Callable[[GatewayFixture, RawClient], Any], decisions: int
) -> None:
    client, turns = await world.client(), world.authorizer
    assert isinstance(turns, Turns)
    counting = asyncio.create_task(turns.count_turns())
    assert await ask(world, client) == [f"name-{n:06d}" for n in range(0, MANY, 2)]
    counting.cancel()
    assert max(turns.decided.values()) <= BATCH * decisions


@pytest.mark.usefixtures("no_time")
@played
async def test_description_of_many_members_is_built_over_several_loop_iterations(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned = [AssignedTopicPartitions(UUID(int=1), [0], "orders")]
    members = [
        ConsumerGroupMemberDescription(
            f"m{n}", None, None, 1, "c", "/h", ["orders"], "", assigned, assigned, 1
        )
        for n in range(MANY)
    ]
    answer: asyncio.Future[ConsumerGroupDescribeResponse] = asyncio.get_running_loop().create_future()
    answer.set_result(
        ConsumerGroupDescribeResponse(
            group_id="g", correlation_id="1", request="", error_code=ErrorCode.NONE, members=members
        )
    )
    monkeypatch.setattr(world.core, "send", lambda *_: answer)
    pauses, pause = list[Slices](), Slices.pause

    async def counted(one: Slices) -> None:
        pauses.append(one)
        await pause(one)

    monkeypatch.setattr(Slices, "pause", counted)
    (group,) = (await world.ask(ApiKey.ConsumerGroupDescribe, 1, group_ids=["g"])).groups
    assert [one.member_id for one in group.members] == [f"m{n}" for n in range(MANY)]
    assert len(pauses) >= 2 * MANY // BATCH


@pytest.mark.parametrize("version", codec.versions(LIST))
@played
async def test_batched_list_equals_that_of_the_general_codec(world: GatewayFixture, version: int) -> None:
    for number in (0, 1, 127, 128, 300):
        listing(world, number)
        client = await world.client()
        await client.send(LIST, version)
        shown = {"protocol_type": "", "group_state": "Empty", "group_type": "classic"}
        body = {"groups": [{"group_id": group.group_id, **shown} for group in known(number)]}
        message = codec._build_message(codec.RESPONSES[LIST], body, version=version)
        encoded = await client.receive_bytes()
        assert encoded[5 if version >= 3 else 4 :] == bytes(message.encode())


def test_all_parts_of_a_response_count_until_the_client_has_read_them() -> None:
    life: Any = SimpleNamespace(state=SimpleNamespace(writes=True), end=lambda why: None)
    unread = WriteBufferLimit(10**9)
    writing = ResponseWriter(life, GatewayCounts(), unread)
    writing.transport = SimpleNamespace(is_closing=lambda: False)  # type: ignore[assignment]
    writing.put(writing.open_slot(10), (b"size", bytes(10_000), b"\0"))
    assert unread.bytes == 10_005


@played(at_coordinator=1)
async def test_waiting_list_groups_request_uses_no_coordinator_capacity(world: GatewayFixture) -> None:
    lister, other = await world.client(), await world.client()
    await lister.ask(LIST, 5)
    barrier = next(request for request in world.core.asked if isinstance(request, DescribeGroup))
    held = hold(world, barrier.group_id)
    world.core.asked.clear()
    await lister.send(LIST, 5)
    await until_asked(world, 1)
    await other.ask(HEARTBEAT, 4, **beat("other"))
    held.set()
    assert ids((await lister.receive())[1]) == []


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
