"""Requests whose work grows with what exists, not with what they name, take the event loop in slices."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from gateway.apis import modern_groups, slices
from gateway.apis.slices import Slices, batches
from gateway.authorization.acls import CLUSTER_NAME, Operation
from gateway.authorization.authorizer import Authorizer
from gateway.coordinator.groups import KnownGroup
from gateway.fairness import CapacityLimiter
from gateway.metrics.numbers import GatewayCounts
from gateway.net.limits.buffers import WriteBufferLimit
from gateway.net.writing import ResponseWriter
from gateway.wire import codec
from kafka_why.contract.kafka.requests import ConsumerGroupDescribe, DescribeGroup
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
)
from kafka_why.contract.messages import ErrorCode
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import HEARTBEAT, LIST
from tests.unit.gateway.test_pipelining import beat, hold, until_asked

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
    world.core.configured = lambda: [group.group_id for group in groups]  # type: ignore[method-assign]


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
    """A slice has no more than one batch of entries."""
    monkeypatch.setattr(slices, "_SLICE_S", -1.0)


@pytest.mark.parametrize(
    ("ask", "decisions"), [(list_groups, 1), (list_transactions, 1), (metadata_of_all, 9)]
)
@pytest.mark.usefixtures("no_time")
def test_long_list_is_sent_in_batches_one_per_loop_iteration(
    ask: Callable[[GatewayFixture, RawClient], Any], decisions: int
) -> None:
    turns = Turns()

    @played(authorizer=lambda: turns)
    async def play(world: GatewayFixture) -> None:
        client = await world.client()
        counting = asyncio.create_task(turns.count_turns())
        assert await ask(world, client) == [f"name-{n:06d}" for n in range(0, MANY, 2)]
        counting.cancel()
        assert max(turns.decided.values()) <= BATCH * decisions

    play()


@pytest.mark.usefixtures("no_time")
def test_description_of_many_members_is_built_in_slices() -> None:
    pauses = 0

    class Counting(Slices):
        async def pause(self) -> None:
            nonlocal pauses
            pauses += 1

    class Context(SimpleNamespace):
        services = SimpleNamespace(authorizer=None)

        def slices(self) -> Slices:
            return Counting(CapacityLimiter(1))

        def may(self, *_: Any) -> bool:
            return True

    assigned = [AssignedTopicPartitions(UUID(int=1), [0], "orders")]
    members = [
        ConsumerGroupMemberDescription(
            f"m{n}", None, None, 1, "c", "/h", ["orders"], "", assigned, assigned, 1
        )
        for n in range(MANY)
    ]

    async def play() -> Sequence[Any]:
        answer: asyncio.Future[ConsumerGroupDescribeResponse] = asyncio.get_running_loop().create_future()
        answer.set_result(
            ConsumerGroupDescribeResponse(
                group_id="g", correlation_id="1", request="", error_code=ErrorCode.NONE, members=members
            )
        )
        description = modern_groups.Description(request=ConsumerGroupDescribe, is_on=lambda _: True)
        asked = SimpleNamespace(include_authorized_operations=False)
        fields = await description._describe(Context(), asked, answer)  # type: ignore[arg-type]
        described: Sequence[Any] = fields["members"]
        return described

    assert [one["member_id"] for one in asyncio.run(play())] == [f"m{n}" for n in range(MANY)]
    assert pauses >= 2 * MANY // BATCH


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
async def test_waiting_lists_take_no_coordinator_capacity(world: GatewayFixture) -> None:
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
