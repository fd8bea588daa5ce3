"""Limits on connections: in all, by address, and how fast they may come."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from gateway.limits import DEFAULT, Limits, QuotaRules
from gateway.net.first_bytes import Network, parse_network, proxy_header
from tests.harness.gateway import HEARTBEAT, HOST, GatewayFixture, played
from tests.harness.raw_client import RawClient
from tests.harness.waiting import until
from tests.unit.gateway.test_server import beat


def refused(world: GatewayFixture) -> dict[str, float]:
    numbers = world.gateway.numbers()["connections_refused"]
    return {reason: count for (reason,), (count,) in numbers.items() if count}


OF_ADDRESS = Limits(connections_per_ip=1, connections_per_ip_overrides={HOST: 2, "10.0.0.7": 1})


@pytest.mark.parametrize(
    ("limits", "limit"), [(OF_ADDRESS, "max.connections.per.ip"), (Limits(connections=2), "max.connections")]
)
@played(limits=lambda limits: limits)
async def test_connections_over_the_limit_of_an_address_or_a_gateway_are_refused(
    world: GatewayFixture, limits: Limits, limit: str
) -> None:
    first, second = await world.client(), await world.client()
    for client in (first, second):
        await client.ask(HEARTBEAT, 4, **beat())
    with capture_logs() as logs:
        assert await (await world.client()).is_closed()
    assert [(entry["event"], entry["limit"]) for entry in logs] == [("a connection was refused", limit)]
    assert refused(world) == {limit: 1}
    first.writer.transport.abort()
    await until(lambda: len(world.gateway.connections()) == 1)
    assert (await (await world.client()).ask(HEARTBEAT, 4, **beat())).error_code == 25


async def balanced(world: GatewayFixture, host: str) -> RawClient:
    """Return a client whose load balancer has reported its address."""
    client = await world.client()
    client.writer.write(proxy_header(((host, 1), ("10.0.0.9", 2))))
    return client


@played(proxies=(parse_network(HOST),), limits=Limits(connections_per_ip=1))
async def test_clients_of_a_load_balancer_count_by_their_own_addresses(world: GatewayFixture) -> None:
    first, second = await balanced(world, "10.0.0.1"), await balanced(world, "10.0.0.2")
    for client in (first, second):
        assert (await client.ask(HEARTBEAT, 4, **beat())).error_code == 25
    third = await balanced(world, "10.0.0.1")
    third.writer.write(b"\0")
    assert await third.is_closed()
    assert refused(world) == {"max.connections.per.ip": 1}


@played(proxies=(parse_network(HOST),), limits=Limits(connections=2))
async def test_connections_count_before_the_header_of_the_load_balancer(world: GatewayFixture) -> None:
    first, _ = await world.client(), await world.client()
    assert await (await world.client()).is_closed()
    assert refused(world) == {"max.connections": 1}
    await until(lambda: world.gateway.numbers()["connections"] == {(): [2]})
    first.writer.transport.abort()
    await until(lambda: world.gateway.numbers()["connections"] == {(): [1]})
    assert (await (await balanced(world, "10.0.0.1")).ask(HEARTBEAT, 4, **beat())).error_code == 25


@pytest.mark.parametrize(
    "proxies", [(), (parse_network("10.0.0.0/8"),)], ids=["direct", "balancer elsewhere"]
)
@played(
    proxies=lambda proxies: proxies,
    rules=QuotaRules(connections={DEFAULT: 1.0}),
    quota_window_num=1,
    quota_window_s=2.0,
)
async def test_connection_over_the_rate_of_its_address_is_closed_after_a_delay(
    world: GatewayFixture, proxies: tuple[Network, ...]
) -> None:
    """KIP-612. The third one comes before there is a token for it. Those that send nothing count."""
    kept = [await world.client() for _ in range(2)]
    began_s = time.monotonic()
    assert await (await world.client()).is_closed()
    assert time.monotonic() - began_s > 0.04
    assert refused(world) == {"connection_creation_rate": 1}
    assert (await kept[1].ask(HEARTBEAT, 4, **beat())).error_code == 25


@pytest.mark.parametrize("proxies", [(), (parse_network(HOST),)], ids=["direct", "balanced"])
@played(
    proxies=lambda proxies: proxies,
    connection_creation_rate=10,
    quota_window_num=1,
    quota_window_s=0.2,
)
async def test_connection_over_the_total_rate_waits_and_is_served(
    world: GatewayFixture, proxies: tuple[Network, ...]
) -> None:
    """A request right after a load balancer's header waits, too."""
    began_s = time.monotonic()
    clients = [await (balanced(world, f"10.0.0.{n}") if proxies else world.client()) for n in range(4)]
    answers = await asyncio.gather(*(client.ask(HEARTBEAT, 4, **beat()) for client in clients))
    assert time.monotonic() - began_s > 0.04
    assert {answer.error_code for answer in answers} == {25}
    assert refused(world) == {}


@played(connection_creation_rate=1, quota_window_num=1, quota_window_s=60.0)
async def test_waiting_connection_counts_towards_the_limit_and_may_disconnect(world: GatewayFixture) -> None:
    clients = [await world.client() for _ in range(70)]
    await until(lambda: world.gateway.numbers()["connections_accepted"] == {(): [70]})
    for client in clients:
        client.writer.transport.abort()
    await until(lambda: not world.gateway.connections())
