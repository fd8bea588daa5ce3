"""The addresses that clients get for brokers: templates, several gateways, names in the TLS handshake."""

import asyncio
import ssl

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.net.advertised import Advertised, Template, parse_templates
from gateway.security.authentication import ListenerSecurity
from kafka_why.connections.address import Address
from tests.harness.gateway import HOST, LIST, NODE_ID, GatewayFixture, RawClient, join_fields, played
from tests.unit.gateway.test_security import PEM

PORT = 9_193
OTHER_ID = NODE_ID + 1


@pytest.mark.parametrize(
    ("text", "node_id", "address"),
    [
        ("broker-{node}.kafka.example.com:9092", 3, Address("broker-3.kafka.example.com", 9_092)),
        ("kafka.example.com:{port}", 3, Address("kafka.example.com", PORT)),
        ("nat.example.com:2909{node}", 3, Address("nat.example.com", 29_093)),
        ("gateway-1.gateways:{port}", 0, Address("gateway-1.gateways", PORT)),
        ("[2001:db8::1]:{port}", 0, Address("2001:db8::1", PORT)),
    ],
)
def test_address_template_gives_each_broker_an_address(text: str, node_id: int, address: Address) -> None:
    assert Template.parse(text).address(node_id, PORT) == address


@pytest.mark.parametrize(
    "text",
    ["", "kafka.example.com", "kafka.example.com:9092", "kafka-{node}", "{node}", "a b-{node}:9092", "h:{n}"],
)
def test_invalid_address_template_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT with"):
        Template.parse(text)


@pytest.mark.parametrize(
    ("name", "node_id"),
    [
        ("broker-3.kafka.example.com", 3),
        ("BROKER-12.kafka.example.com", 12),
        ("broker-x.kafka.example.com", None),
        ("broker-3.kafka.example.com.evil.example", None),
        ("broker-3xkafka.example.com", None),
        ("kafka.example.com", None),
        ("", None),
        (None, None),
    ],
)
def test_server_name_identifies_its_broker(name: str | None, node_id: int | None) -> None:
    templates = parse_templates("gateway-1:{port},broker-{node}.kafka.example.com:9092")
    assert Advertised(templates, dict).node_id(name) == node_id


@played
async def test_brokers_are_spread_over_gateways_and_move_while_one_gateway_is_down(_: GatewayFixture) -> None:
    servers = [await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0) for _ in range(2)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    # Ports that {node} tells apart: the other gateway's listeners for brokers 1 and 2.
    templates = tuple(Template(f"{HOST}:{port}") for port in ports)
    advertised = Advertised(templates, lambda: {1: PORT, 2: PORT + 1})

    def named() -> list[int]:
        addresses = [advertised.address(node_id, PORT) for node_id in (1, 2, 3)]
        return [ports.index(address.port) for address in addresses if address is not None]

    # Where none can be reached, all are named.
    for away, expected in ((None, [1, 0, 1]), (1, [0, 0, 0]), (0, [1, 0, 1])):
        if away is not None:
            servers[away].close()
            await servers[away].wait_closed()
        await advertised.check()
        assert named() == expected


# Both have no port by the second template. Broker 6 would be named by the first one, broker 7 by the second.
@pytest.mark.parametrize("node_id", [6, 7])
@played(templates=parse_templates("nat.example.com:3000{node},nat.example.com:6553{node}"))
async def test_broker_without_a_port_in_one_template_is_refused_each_time(
    world: GatewayFixture, node_id: int
) -> None:
    """No listener stays open for it, so its port is not among those that are checked either."""
    world.cluster.update_brokers({node_id: world.broker.address}, all_of_them=True)
    with capture_logs() as logs:
        for _ in range(2):
            client = await world.client()
            await client.send(ApiKey.FindCoordinator, 0, key="any")
            assert await client.is_closed()
    closed = [entry for entry in logs if entry["event"] == "a connection was closed"]
    assert f"broker {node_id} has no address for clients" in closed[0]["why"]
    assert "a connection failed" not in [entry["event"] for entry in logs]


async def named(world: GatewayFixture, name: str | None) -> RawClient:
    """Return a client that names the server so in its TLS handshake."""
    tls = ssl.create_default_context(cafile=PEM)
    tls.check_hostname = False
    return await world.client(tls=tls, server_name=name or HOST)


@pytest.mark.parametrize("of_the_group", [True, False, None])
@played(
    security=ListenerSecurity.read(PEM, None, None),
    templates=parse_templates("broker-{node}.example.com:9092"),
)
async def test_server_name_selects_its_listener(world: GatewayFixture, of_the_group: bool | None) -> None:
    """On the first port. A group is listed by the listener of its broker only, and by the first one."""
    first = await named(world, None)
    await first.ask(11, 5, **join_fields())
    world.cluster.update_brokers(dict.fromkeys((NODE_ID, OTHER_ID), world.broker.address), all_of_them=True)
    # A look-up opens the listener of the broker that it finds.
    found = {(await first.ask(ApiKey.FindCoordinator, 0, key=f"group-{n}")).node_id for n in range(20)}
    assert found == {NODE_ID, OTHER_ID}
    named_first = await first.ask(ApiKey.FindCoordinator, 0, key="g")
    coordinator = named_first.node_id
    assert (named_first.host, named_first.port) == (f"broker-{coordinator}.example.com", 9_092)
    (other,) = found - {coordinator}
    node_id = {True: coordinator, False: other, None: 99}[of_the_group]
    client = await named(world, f"broker-{node_id}.example.com")
    groups = (await client.ask(LIST, 4)).groups
    assert [group.group_id for group in groups] == ([] if of_the_group is False else ["g"])
