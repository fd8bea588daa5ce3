"""The limit on unanswered bytes of all clients. The largest clients are held first."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.net.limits.buffers import SMALL_BYTES, ReceiveBufferLimit
from tests.harness.coroutines import asynchronous
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import HEARTBEAT
from tests.harness.waiting import until
from tests.unit.gateway.test_pipelining import beat
from tests.unit.gateway.test_server import passed_on

KIB = 1024
UNKNOWN_MEMBER_ID = 25
PATIENCE_S = 0.5


@dataclass(eq=False)
class Client:
    """One that sends while it is not held."""

    received: ReceiveBufferLimit
    sent: int = 0
    is_held: bool = False
    has_incomplete_frame: bool = True
    ends: list[Exception] = field(default_factory=list)

    def hold(self, *, held: bool) -> None:
        self.is_held = held

    def end(self, why: Exception) -> None:
        self.ends.append(why)
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
    clients = [Client(received) for _ in range(6)]
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


@played(unanswered_bytes=1024 * KIB)
async def test_client_that_sends_much_is_paused_while_others_are_served(world: GatewayFixture) -> None:
    others = [await world.client() for _ in range(3)]
    for _ in range(3):
        await begun(world, 400 * KIB)
    await until(lambda: held(world) > 0)
    for other in others:
        assert (await other.ask(HEARTBEAT, 3, **beat())).error_code == UNKNOWN_MEMBER_ID


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
    resting, too_much = Client(received), Client(received)
    for client in (resting, too_much):
        received.skip_turn(client)
        assert client.is_held
    received.count(too_much, 1_000 * KIB)
    await asyncio.sleep(0)
    assert not resting.is_held
    assert too_much.is_held, "the bound holds it for longer"
