"""The first bytes of connections to the gateway for RocketMQ: addresses from load balancers, and TLS."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.metrics.numbers import TOO_LATE, TOO_MANY_OF_IP
from gateway.net.first_bytes import (
    InvalidProxyHeader,
    is_within,
    parse_network,
    proxy_header,
    read_proxy_header,
)
from gateway.net.tls_entry import Endpoints
from gateway.rocketmq import brokers
from gateway.rocketmq.options import rocketmq_limits
from gateway.security.authentication import ListenerSecurity, SecuritySettings
from tests.harness.certificates import Authority, Issued
from tests.harness.rocketmq_front import HOST, FrontFixture, RawPeer, StubServer, fronted
from tests.harness.waiting import until

SEND, MIB = 310, 1024 * 1024
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
IPV4 = bytes([10, 0, 0, 1, 10, 0, 0, 2, 2, 1, 0, 80])
IPV6 = bytes.fromhex("fe80" + 13 * "00" + "01" + 15 * "00" + "02") + b"\2\1\0\1"
OF_IPV4: Endpoints = ("10.0.0.1", 513), ("10.0.0.2", 80)
MAPPED = b"".join(bytes(10) + b"\xff\xff" + IPV4[at : at + 4] for at in (0, 4)) + IPV4[8:]
OF_IPV6: Endpoints = ("fe80::1", 513), ("::2", 1)
BALANCER = (parse_network(HOST),)

# The header.


@pytest.mark.parametrize(
    ("header", "endpoints"),
    [
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 513 80\r\n", OF_IPV4),
        (b"PROXY TCP6 fe80::1 ::2 513 1\r\n", OF_IPV6),
        (b"PROXY TCP6 ::ffff:10.0.0.1 ::ffff:a00:2 513 80\r\n", OF_IPV4),
        (SIGNATURE + b"\x21\x21\0\x24" + MAPPED, OF_IPV4),
        (b"PROXY TCP6 ::ffff:10.0.0.1 ::2 513 80\r\n", (("10.0.0.1", 513), ("::2", 80))),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (SIGNATURE + b"\x21\x11\0\x0c" + IPV4, OF_IPV4),
        (SIGNATURE + b"\x21\x11\0\x12" + IPV4 + b"\x04\0\3abc", OF_IPV4),
        (SIGNATURE + b"\x21\x21\0\x24" + IPV6, OF_IPV6),
        (SIGNATURE + b"\x20\0\0\0", None),
        (SIGNATURE + b"\x20\x11\0\x0c" + IPV4, None),
        (SIGNATURE + b"\x21\x31\0\xd8" + bytes(216), None),
    ],
)
def test_proxy_header_is_read_only_when_complete(header: bytes, endpoints: Endpoints | None) -> None:
    for end in range(1, len(header)):
        assert read_proxy_header(header[:end]) is None
    assert read_proxy_header(header + b"\0\0\1\0") == (endpoints, len(header))
    if endpoints is not None:
        assert read_proxy_header(proxy_header(endpoints)) == (endpoints, len(proxy_header(endpoints)))


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\1\0",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 513\r\n",
        b"PROXY TCP4 ::1 ::2 513 80\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 513 65536\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 -1 80\r\n",
        b"PROXY UNIX a b 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 " + bytes(100),
        SIGNATURE + b"\x11\x11\0\x0c" + IPV4,
        SIGNATURE + b"\x22\x11\0\x0c" + IPV4,
        SIGNATURE + b"\x21\x11\0\x0b" + IPV4,
    ],
)
def test_invalid_proxy_header_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidProxyHeader):
        read_proxy_header(data)


def test_proxy_header_for_ipv6_addresses_has_version_2() -> None:
    assert proxy_header((("fe80::1%eth0", 513), ("::2", 1))) == SIGNATURE + b"\x21\x21\0\x24" + IPV6


def test_trusted_network_contains_ipv4_addresses_mapped_to_ipv6() -> None:
    networks = (parse_network("10.0.0.0/8"), parse_network("::1"))
    hosts = ("10.1.2.3", "::ffff:10.1.2.3", "::1", "11.0.0.1", "unknown")
    assert [is_within(host, networks) for host in hosts] == [True, True, True, False, False]


# Connections.


async def balanced(connect: Callable[[], Coroutine[Any, Any, RawPeer]], header: bytes) -> RawPeer:
    """Return a client whose load balancer has sent this header."""
    peer = await connect()
    peer.writer.write(header)
    return peer


@pytest.mark.parametrize("in_parts", [False, True])
@fronted(proxies=BALANCER)
async def test_client_behind_a_balancer_counts_by_own_address(world: FrontFixture, in_parts: bool) -> None:
    for header in (proxy_header(OF_IPV4), SIGNATURE + b"\x21\x11\0\x0c" + IPV4):
        client = await world.at_broker()
        if in_parts:
            for one in header:
                client.writer.write(bytes([one]))
                await client.writer.drain()
        else:
            client.writer.write(header)
        assert (await client.ask(SEND, b"x"))[1] == b"x"
    assert [one.client_address for one in world.sessions.made] == ["10.0.0.1:513"] * 2
    assert world.server.lines == [proxy_header(OF_IPV4)] * 2
    name_server = await balanced(world.client, proxy_header(OF_IPV4))
    assert b'0:"10.0.0.2:' in (await name_server.ask(105))[1]


@fronted(proxies=BALANCER)
async def test_health_check_counts_by_the_load_balancers_address(world: FrontFixture) -> None:
    client = await balanced(world.at_broker, SIGNATURE + b"\x20\0\0\0")
    await client.ask(SEND)
    host, port = client.writer.get_extra_info("sockname")
    assert [one.client_address for one in world.sessions.made] == [f"{host}:{port}"]


@fronted(proxies=BALANCER)
async def test_load_balancer_that_sends_no_proxy_header_is_refused(world: FrontFixture) -> None:
    client = await world.at_broker()
    with capture_logs() as logs:
        client.send(SEND)
        assert await client.is_closed()
        await until(lambda: logs)
    assert "does not begin with the PROXY protocol's header" in logs[0]["why"]
    assert world.sessions.made == []


@fronted(proxies=(parse_network("10.0.0.0/8"),))
async def test_proxy_header_from_an_untrusted_address_is_refused(world: FrontFixture) -> None:
    client = await balanced(world.at_broker, proxy_header(OF_IPV4))
    assert await client.is_closed()
    assert (await (await world.at_broker()).ask(SEND))[0].code == SEND


@fronted(proxies=BALANCER, limits=replace(rocketmq_limits(), authentication_timeout_s=0.1))
async def test_connection_that_sends_nothing_is_closed(world: FrontFixture) -> None:
    with capture_logs() as logs:
        assert await (await world.at_broker()).is_closed()
        assert await (await balanced(world.at_broker, proxy_header(OF_IPV4))).is_closed()
    assert (logs[0]["event"], logs[0]["limit"]) == ("a connection was refused", TOO_LATE)
    assert logs[0]["client"] == HOST
    assert world.counts.refused == {TOO_LATE: 2}


@fronted(proxies=BALANCER)
async def test_connection_that_is_reset_before_it_is_accepted_is_dropped(world: FrontFixture) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    # Nothing is awaited between, so the event loop accepts the connection after the reset.
    with socket.create_connection((HOST, world.gateway.address.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert (await (await balanced(world.client, proxy_header(OF_IPV4))).ask(105))[0].code == 0
    assert errors == []


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def issued(authority: Authority) -> Issued:
    return authority.issue("gateway")


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.certificate)


@pytest.fixture
def server(issued: Issued) -> StubServer:
    """Return a broker with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.both)
    return StubServer(tls=context, expects_line=False)


@pytest.fixture(params=[False, True], ids=["enforcing", "permissive"])
def is_permissive(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


with_tls = partial(
    fronted,
    security=lambda issued: ListenerSecurity(SecuritySettings(keystore=issued.both)),
    is_tls_permissive=lambda is_permissive: is_permissive,
)


@with_tls(server=lambda server: server, upstream_tls=lambda trusting: trusting, proxy_line=False)
async def test_gateway_terminates_tls_and_uses_its_own_to_the_broker(
    world: FrontFixture, issued: Issued, trusting: ssl.SSLContext, server: StubServer, is_permissive: bool
) -> None:
    client = await world.at_broker(tls=trusting)
    assert (await client.ask(SEND, bytes(3 * MIB)))[1] == bytes(3 * MIB)
    plain = await world.at_broker()
    if is_permissive:
        assert (await plain.ask(SEND, bytes(3 * MIB)))[1] == bytes(3 * MIB)
    else:
        plain.send(SEND)
        assert await plain.is_closed()


@with_tls(proxies=BALANCER)
async def test_proxy_header_precedes_the_tls_handshake(
    world: FrontFixture, issued: Issued, trusting: ssl.SSLContext, is_permissive: bool
) -> None:
    client = await balanced(world.at_broker, proxy_header(OF_IPV4))
    await client.writer.start_tls(trusting, server_hostname="localhost")
    assert (await client.ask(SEND, bytes(3 * MIB)))[1] == bytes(3 * MIB)
    assert world.sessions.made[0].client_address == "10.0.0.1:513"


def _entering(world: FrontFixture) -> float:
    return world.gateway.numbers()["connections"]["entry",][0]


@with_tls(limits=replace(rocketmq_limits(), connections_per_ip=1))
async def test_connection_counts_towards_limits_before_its_tls_handshake(
    world: FrontFixture, issued: Issued, is_permissive: bool
) -> None:
    first = await world.at_broker()
    assert await (await world.at_broker()).is_closed()
    assert world.counts.refused == {TOO_MANY_OF_IP: 1}
    await until(lambda: _entering(world) == 1)
    first.writer.transport.abort()
    await until(lambda: _entering(world) == 0)
    await world.at_broker()
    await until(lambda: _entering(world) == 1)
    assert world.counts.refused == {TOO_MANY_OF_IP: 1}


@with_tls(is_tls_permissive=False, limits=replace(rocketmq_limits(), authentication_timeout_s=0.1))
async def test_tls_handshake_timeout_is_counted(world: FrontFixture, issued: Issued) -> None:
    assert await (await world.at_broker()).is_closed()
    assert world.counts.refused == {TOO_LATE: 1}
    await until(lambda: _entering(world) == 0)


@with_tls()
async def test_client_whose_broker_disappears_during_the_handshake_is_disconnected(
    world: FrontFixture,
    issued: Issued,
    trusting: ssl.SSLContext,
    is_permissive: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await world.at_broker()
    await until(lambda: _entering(world))
    monkeypatch.setattr(brokers, "UNSEEN_MAX_S", -1.0)
    await world.gateway.table.refresh([])
    with capture_logs() as logs:
        await client.writer.start_tls(trusting, server_hostname="localhost")
        assert await client.is_closed()
        await until(lambda: logs)
    assert logs[0]["why"] == "the cluster no longer has broker broker-a/0"
    await until(lambda: _entering(world) == 0)
