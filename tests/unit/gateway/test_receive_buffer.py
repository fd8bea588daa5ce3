"""Bounds of memory: unanswered bytes, parked requests, and an overloaded coordinator whose clients wait."""

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.net.limits.buffers import SMALL_BYTES, ReceiveBufferLimit
from gateway.net.limits.requests import ParkedMemoryLimit
from kafka_why.contract.kafka.requests import JoinGroup
from tests.harness.gateway import HEARTBEAT, JOIN, GatewayFixture, RawClient, join_fields, played
from tests.harness.served_client import NoSocketClient
from tests.harness.waiting import asynchronous, until
from tests.unit.gateway.test_server import (
    UNKNOWN_MEMBER_ID,
    beat,
    hold,
    join,
    nothing_more,
    passed_on,
    until_asked,
)

KIB = 1024
PATIENCE_S = 0.5


@dataclass(eq=False, kw_only=True)
class Client(NoSocketClient):
    """A client that sends while it is not paused."""

    received: ReceiveBufferLimit
    sent: int = 0

    def end(self, why: Exception) -> None:
        super().end(why)
        self.received.forget(self)

    def send(self, number: int) -> None:
        if not self.is_held:
            self.sent += number
            self.received.count(self, self.sent)

    def is_answered(self) -> None:
        self.sent = 0
        self.received.count(self, 0)


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), max_size=80)


@given(STEPS, st.integers(1, 1_000))
@asynchronous
async def test_received_bytes_are_limited_and_clients_below_the_mean_are_paused_last(
    steps: list[tuple[int, int]], bound_kib: int
) -> None:
    """A step is a client that sends so many KiB, or whose requests are answered (0)."""
    bound = bound_kib * KIB
    received = ReceiveBufferLimit(bound, 60.0)
    clients = [Client(received=received) for _ in range(6)]
    for number, kib in steps:
        client = clients[number]
        before = received.bytes
        if kib:
            client.send(kib * KIB)
        else:
            client.is_answered()
        counted = [one for one in clients if one.sent > SMALL_BYTES]
        assert received.bytes == sum(one.sent for one in counted)
        assert received.held == sum(one.is_held for one in clients)
        if received.bytes <= bound:
            assert not received.held
        elif before <= bound:
            most = max(counted, key=lambda one: one.sent)
            assert most.is_held, "the greatest is held"
        # A client may exceed the bound by what it sends at once, and all together by a step of 1 MiB.
        assert received.bytes <= 1.25 * bound + KIB * KIB + len(clients) * 300 * KIB
    for client in clients:
        client.is_answered()
    assert (received.bytes, received.held) == (0, 0)


async def begun(world: GatewayFixture, size: int) -> RawClient:
    """Return a client that has sent all of a frame but its last byte."""
    client = await world.client()
    await client.send_bytes(passed_on(1, bytes(size))[:-1])
    return client


def counted(world: GatewayFixture) -> float:
    (number,) = world.gateway.numbers()["unanswered_bytes"][()]
    return number


def held(world: GatewayFixture) -> float:
    (number,) = world.gateway.numbers()["held_clients"]["memory",]
    return number


@played(unanswered_bytes=256 * KIB, write_timeout_s=PATIENCE_S)
async def test_paused_client_with_an_incomplete_frame_is_disconnected(world: GatewayFixture) -> None:
    complete = await world.client()
    assert (await complete.ask(HEARTBEAT, 3, **beat())).error_code == UNKNOWN_MEMBER_ID
    stuck = [await begun(world, 200 * KIB) for _ in range(2)]
    for client in stuck:
        assert await client.is_closed()
    await until(lambda: counted(world) == held(world) == 0)
    assert (await complete.ask(HEARTBEAT, 3, **beat())).error_code == UNKNOWN_MEMBER_ID


@asynchronous
async def test_burst_of_one_client_does_not_keep_others_paused() -> None:
    received = ReceiveBufferLimit(10 * KIB, 60.0)
    resting, too_much = Client(received=received), Client(received=received)
    for client in (resting, too_much):
        received.pause_one_turn(client)
        assert client.is_held
    received.count(too_much, 1_000 * KIB)
    await asyncio.sleep(0)
    assert not resting.is_held
    assert too_much.is_held, "the bound holds it for longer"


COORDINATOR_NOT_AVAILABLE = 15


async def parked(world: GatewayFixture, group_id: str, metadata_bytes: int) -> tuple[RawClient, int]:
    """Return a client whose JoinGroup is parked, and the request's correlation id."""
    client, before = await world.client(), len(world.core.asked)
    number = await join(client, group_id, metadata_bytes)
    await until_asked(world, before + 1)
    return client, number


@played(parked_bytes=100_000)
async def test_largest_parked_request_is_evicted_when_memory_runs_out(world: GatewayFixture) -> None:
    members = [await parked(world, f"g-{n}", 1_000) for n in range(50)]
    attacker = await world.client()
    number = await join(attacker, "large", 60_000)
    answered, answer = await attacker.receive()
    assert (answered, answer.error_code) == (number, COORDINATOR_NOT_AVAILABLE)
    await nothing_more(world, 50)
    world.core.advance(3_000)
    for client, number in members:
        answered, answer = await client.receive()
        assert (answered, answer.error_code) == (number, 0)


SIZES = st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=60)


@given(SIZES, st.integers(1, 1_000))
def test_request_not_above_the_mean_is_not_evicted(sizes: list[tuple[int, bool]], bound: int) -> None:
    parked = ParkedMemoryLimit(bound)
    here: dict[int, tuple[int, int]] = {}

    def enter(name: int, size: int) -> None:
        def give_up() -> None:
            assert here[name][1] > bound / len(here)
            parked.remove(here.pop(name)[0])

        here[name] = parked.add(size, give_up), size

    for name, (size, leaves) in enumerate(sizes):
        enter(name, size)
        parked.shrink()
        if leaves and here:
            parked.remove(here.pop(next(iter(here)))[0])
        assert parked.bytes == sum(size for _, size in here.values()) <= bound


async def beating(world: GatewayFixture, count: int) -> list[RawClient]:
    """Return clients that have sent a heartbeat each, one after the other."""
    clients = []
    for number in range(count):
        clients.append(await world.client())
        await clients[-1].send(HEARTBEAT, 4, **beat(f"g{number}"))
        await waits(world, number + 1)
    return clients


async def waits(world: GatewayFixture, requests: int) -> None:
    await until(lambda: sum(connection.unanswered for connection in world.gateway.connections()) >= requests)


@played(at_coordinator=1)
async def test_join_that_the_coordinator_may_park_needs_no_capacity(world: GatewayFixture) -> None:
    hold(world, "g0")
    await beating(world, 1)
    client = await world.client()
    await client.send(JOIN, 1, **join_fields())
    await until_asked(world, 2)
    assert isinstance(world.core.asked[1], JoinGroup)


@played(bytes_at_coordinator=50)
async def test_total_bytes_of_requests_at_the_coordinator_are_limited(world: GatewayFixture) -> None:
    held = [hold(world, f"g{number}") for number in range(5)]
    clients = await beating(world, 5)
    await nothing_more(world, 2)  # of 29 bytes each
    for event in held:
        event.set()
    for client in clients:
        assert (await client.receive())[1].error_code == UNKNOWN_MEMBER_ID
