"""Tenants take turns where all clients wait: one that sends much delays the others by one turn."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from gateway.fairness import TENANT, CapacityLimiter, FairQueue, FairThread
from gateway.net.limits.requests import SMALL_BYTES, ForwardedRequests, ForwardingLimiter, LargeRequestRate
from gateway.security.authentication import ListenerSecurity, SecuritySettings
from tests.harness.coroutines import asynchronous
from tests.harness.gateway import HOST, PATIENCE_S, GatewayFixture, RawClient, played
from tests.harness.gateway_requests import HEARTBEAT
from tests.harness.sasl import authenticate, by_password
from tests.harness.still_time import StillLoop, in_still_time
from tests.harness.waiting import until
from tests.unit.gateway.test_pipelining import asked, beat, hold, until_asked
from tests.unit.gateway.test_server import passed_on

USERS = ListenerSecurity(SecuritySettings(users=Path(__file__).parents[2] / "data" / "gateway_users"))
OTHER_LOOPBACK = "127.0.0.2"
LARGE = 2 * SMALL_BYTES

T = TypeVar("T")


def of(tenant: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    context = copy_context()
    context.run(TENANT.set, tenant)
    return asyncio.create_task(work, context=context)


class Item(str):
    """A waiter that may be gone."""

    is_gone = False

    def done(self) -> bool:
        return self.is_gone


def queue_of(*items: tuple[str, Item]) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue()
    for tenant, item in items:
        context = copy_context()
        context.run(TENANT.set, tenant)
        context.run(queue.append, item)
    return queue


def taken(queue: FairQueue[Item]) -> list[str]:
    order = []
    while queue.first() is not None:
        order.append(str(queue.popleft()))
    assert not queue
    return order


def test_cancelled_waiter_does_not_cost_its_tenant_a_turn() -> None:
    """So clients of one principal that come and go do not delay another client of it."""
    items = [("a", Item(f"a{n}")) for n in range(9)] + [("b", Item(f"b{n}")) for n in range(3)]
    for _, item in items[:8]:
        item.is_gone = True
    queue = queue_of(*items)
    assert queue.waiting == 4
    assert taken(queue) == ["a8", "b0", "b1", "b2"]


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
    room, entered = CapacityLimiter(1), list[str]()

    async def enter() -> None:
        async with room:
            entered.append(TENANT.get())
            await asyncio.sleep(0)

    tasks = [of("many", enter()) for _ in range(10)]
    one = of("one", enter())
    await asyncio.sleep(0)
    tasks[5].cancel()
    await asyncio.gather(*tasks, one, return_exceptions=True)
    assert room.waiting == 0
    assert room.try_acquire()
    assert entered == ["many", "many", "one", *["many"] * 7]


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
    before = world.broker.metadata_asked
    many = [
        of("many", world.cluster.topics([f"absent-{caller}-{number}" for number in range(500)]))
        for caller in range(40)
    ]
    await asyncio.sleep(0)
    assert await of("one", world.cluster.topics(["orders"]))
    assert world.broker.metadata_asked - before <= 3
    await asyncio.gather(*many)
    assert world.broker.metadata_asked - before > 10


@asynccontextmanager
async def clients_of(world: GatewayFixture, names: str) -> AsyncIterator[list[RawClient]]:
    """Yield a client of the address or the user of each name."""
    passwords = {"ann": "secret", "bob": "zażółć"}
    clients = []
    for name in names.split():
        address = None if name in passwords else (name, 0)
        client = RawClient(
            *await asyncio.open_connection(HOST, world.gateway.address.port, local_addr=address)
        )
        if name in passwords:
            assert (await authenticate(client, by_password("PLAIN", name, passwords[name]))).error_code == 0
        clients.append(client)
    try:
        yield clients
    finally:
        for client in clients:
            client.writer.close()


def has_waiting(world: GatewayFixture, clients: int) -> bool:
    """Return True if this number of clients waits for capacity at the coordinator."""
    return world.gateway.numbers()["held_clients"]["room",] == [clients]


async def order_of(world: GatewayFixture, names: str) -> list[str]:
    """Send a heartbeat of each while there is no room at the coordinator, then make room. Return the order in
    which they reach it.
    """
    held = hold(world, "g")
    async with clients_of(world, names) as clients:
        for number, client in enumerate(clients):
            group_id = f"g{number}" if number else "g"
            await client.send(HEARTBEAT, 4, **beat(group_id))
            await until(partial(has_waiting, world, number))
        await until_asked(world, 1)
        held.set()
        await until_asked(world, len(clients))
        assert asked(world) == ["Heartbeat"] * len(clients)
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
