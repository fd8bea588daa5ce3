"""Clients take turns: one that sends much delays others by one turn. Large joins pass at a bounded rate."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from functools import partial
from threading import Event
from typing import Any, TypeVar

from gateway.fairness import TENANT, CapacityLimiter, FairThread
from gateway.net.limits.requests import SMALL_BYTES, ForwardedRequests, ForwardingLimiter, LargeRequestRate
from tests.harness.gateway import (
    COMMIT,
    HEARTBEAT,
    HOST,
    PATIENCE_S,
    SYNC,
    GatewayFixture,
    RawClient,
    commit_fields,
    played,
)
from tests.harness.sasl import authenticate, by_password
from tests.harness.still_time import StillLoop, in_still_time
from tests.harness.waiting import asynchronous, until
from tests.unit.gateway.test_security import USERS
from tests.unit.gateway.test_server import asked, beat, hold, join, nothing_more, passed_on, until_asked

OTHER_LOOPBACK = "127.0.0.2"
LARGE = 2 * SMALL_BYTES

T = TypeVar("T")


def of(tenant: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    context = copy_context()
    context.run(TENANT.set, tenant)
    return asyncio.create_task(work, context=context)


@in_still_time
async def test_large_joins_of_one_tenant_delay_another_tenant_by_one_join(loop: StillLoop) -> None:
    flow, passed = LargeRequestRate(LARGE, LARGE), list[str]()

    async def enter() -> None:
        await flow.acquire(LARGE)
        passed.append(TENANT.get())

    tasks = [of("many", enter()) for _ in range(10)]
    await loop.settle()
    tasks.append(of("one", enter()))
    await loop.advance(5)
    assert 5 <= len(passed) <= 7, "at the rate of one a second, after the burst"
    await loop.advance(15)
    await asyncio.gather(*tasks)
    # The first is the burst, and the second waited before the other tenant came.
    assert passed == ["many", "many", "one", *["many"] * 8]


@asynchronous
async def test_capacity_is_granted_to_tenants_in_turns_and_released() -> None:
    """A waiter that was cancelled costs its tenant no turn, and is not granted anything."""
    room, entered = CapacityLimiter(1), list[str]()

    async def enter(name: str) -> None:
        async with room:
            entered.append(name)
            await asyncio.sleep(0)

    tasks = [of("many", enter(f"many-{number}")) for number in range(10)]
    others = [of("one", enter(f"one-{number}")) for number in range(2)]
    await asyncio.sleep(0)
    for task in tasks[2:8]:
        task.cancel()
    await asyncio.gather(*tasks, *others, return_exceptions=True)
    assert room.waiting == 0
    assert room.try_acquire()
    assert entered == ["many-0", "many-1", "one-0", "many-8", "one-1", "many-9"]


@asynchronous
async def test_codec_thread_serves_tenants_in_turns() -> None:
    thread, free, done = FairThread("test"), Event(), list[str]()

    async def work(name: str) -> None:
        await thread.run(done.append, name)

    blocking = thread.run(free.wait, PATIENCE_S)
    many = [of("many", work(f"many-{number}")) for number in range(4)]
    one = of("one", work("one"))
    await asyncio.sleep(0)
    many[1].cancel()
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(blocking, *many, one, return_exceptions=True)
    assert done == ["many-0", "one", "many-2", "many-3"]


@played
async def test_topic_lookups_of_one_tenant_delay_another_by_one_broker_request(world: GatewayFixture) -> None:
    before = world.broker.metadata_requests
    many = [
        of("many", world.cluster.topics([f"absent-{caller}-{number}" for number in range(500)]))
        for caller in range(40)
    ]
    await asyncio.sleep(0)
    assert await of("one", world.cluster.topics(["orders"]))
    assert world.broker.metadata_requests - before <= 3
    await asyncio.gather(*many)
    assert world.broker.metadata_requests - before > 10


def has_waiting(world: GatewayFixture, clients: int) -> bool:
    """Return True if this number of clients waits for capacity at the coordinator."""
    return world.gateway.numbers()["held_clients"]["room",] == [clients]


async def order_of(world: GatewayFixture, names: str) -> list[str]:
    """Send a heartbeat of a client of each address or user while there is no room at the coordinator, then
    make room. Return the order in which they reach it.
    """
    held, passwords = hold(world, "g"), {"ann": "secret", "bob": "zażółć"}
    for number, name in enumerate(names.split()):
        address = None if name in passwords else (name, 0)
        port = world.gateway.address.port
        client = RawClient(*await asyncio.open_connection(HOST, port, local_addr=address))
        world.clients.append(client)
        if name in passwords:
            assert (await authenticate(client, by_password("PLAIN", name, passwords[name]))).error_code == 0
        await client.send(HEARTBEAT, 4, **beat(f"g{number}" if number else "g"))
        await until(partial(has_waiting, world, number))
    await until_asked(world, 1)
    held.set()
    await until_asked(world, len(names.split()))
    assert asked(world) == ["Heartbeat"] * len(names.split())
    return [names.split()[int(request.group_id[1:] or 0)] for request in world.core.asked]


@played(at_coordinator=1, security=USERS)
async def test_principals_take_turns(world: GatewayFixture) -> None:
    assert await order_of(world, "ann ann ann ann bob bob") == ["ann", "ann", "bob", "ann", "bob", "ann"]


@played(at_coordinator=1)
async def test_addresses_of_anonymous_clients_take_turns(world: GatewayFixture) -> None:
    order = await order_of(world, f"{HOST} {HOST} {HOST} {HOST} {OTHER_LOOPBACK}")
    assert order == [HOST, HOST, OTHER_LOOPBACK, HOST, HOST]


@played(forwarded=4)
async def test_pipelined_requests_leave_broker_capacity_to_other_clients(world: GatewayFixture) -> None:
    """A broker may take as long as the client says, as for a Fetch."""
    many, one = await world.client(), await world.client()
    world.broker.open.clear()
    await many.send_bytes(b"".join(passed_on(number) for number in range(10)))
    await until(lambda: len(world.gateway.connections()) == 2 and world.broker.passed)
    await one.send_bytes(passed_on(500))
    await until(lambda: [header.correlation_id for header in world.broker.passed][-1:] == [500])
    world.broker.open.set()
    answers = [await many.receive_bytes() for _ in range(10)]
    assert [int.from_bytes(answer[:4], "big") for answer in answers] == [*range(10)]
    await until(lambda: world.gateway.numbers()["in_flight"]["brokers",] == [0])


@asynchronous
async def test_closed_connection_releases_its_broker_capacity() -> None:
    async def never() -> None:
        raise AssertionError("there are places behind others")

    forwarding = ForwardingLimiter(6)
    for _ in range(3):
        mine = ForwardedRequests(forwarding)
        for _ in range(4):
            await mine.acquire(never)
        mine.release()
        mine.close()
        assert mine.requests == 0


LARGE_JOIN = 4 * SMALL_BYTES
SLOW: dict[str, Any] = {"large_bytes_per_s": 1, "large_burst_bytes": LARGE_JOIN}
"""One large request passes, and the next one not before the end of the test."""


@played(**SLOW)
async def test_waiting_large_joins_of_disconnected_clients_are_dropped(world: GatewayFixture) -> None:
    for number in range(10):
        client = await world.client()
        await join(client, f"large-{number}", LARGE_JOIN)
        if number == 0:
            await until_asked(world, 1)
        client.writer.transport.abort()
    other = await world.client()
    assert (await other.ask(HEARTBEAT, 3, **beat())).error_code == 25
    await join(other, "small", 100)
    await until_asked(world, 3)
    await until(lambda: world.gateway.numbers()["held_clients"]["flow",] == [0])
    await nothing_more(world, 3)


@played(**SLOW)
async def test_large_requests_of_each_kind_wait_for_their_turn(world: GatewayFixture) -> None:
    client = await world.client()
    await join(client, "large", LARGE_JOIN)
    await until_asked(world, 1)
    assignments = [{"member_id": "m", "assignment": bytes(LARGE_JOIN)}]
    other = await world.client()
    await other.send(SYNC, 3, group_id="g", generation_id=1, member_id="m", assignments=assignments)
    other = await world.client()
    offsets = [("orders", number, 0) for number in range(LARGE_JOIN // 32)]
    await other.send(COMMIT, 8, **commit_fields("", *offsets))
    await until(lambda: world.gateway.numbers()["held_clients"]["flow",] == [2])
    await nothing_more(world, 1)
