"""The gateway as RocketMQ's name server, the ports of brokers, and their addresses for clients."""

import re
from pathlib import Path

import pytest
import uvloop

from gateway.net.listener import CannotListen
from gateway.rocketmq.brokers import AddressTemplate, BrokerPorts
from kafka_why.connections.address import Address
from tests.harness.ports import free_port
from tests.harness.rocketmq_front import HOST, FrontFixture, StubServer, front, fronted

SEND, ONE_WAY = 310, 2


@pytest.mark.parametrize("code", [105, 106])
@fronted
async def test_routes_change_only_to_the_gateways_addresses(world: FrontFixture, code: int) -> None:
    world.server.brokers["broker-b"] = {0: "10.0.0.1:10911", 2: "10.0.0.2:10911"}
    _, body = await (await world.client()).ask(code)
    plain = world.server.route() if code == 105 else world.server.cluster()
    addresses = re.findall(rb'\d:"([^"]*)"', body)
    assert len(set(addresses)) == 3
    assert re.sub(rb'(\d:)"[^"]*"', rb"\1", body) == re.sub(rb'(\d:)"[^"]*"', rb"\1", plain)
    reached = [await (await world.client(int(one.rpartition(b":")[2]))).is_closed() for one in addresses[1:]]
    assert reached == [True, True]  # nothing listens at 10.0.0.1
    header, body = await (await world.client(int(addresses[0].rpartition(b":")[2]))).ask(SEND, b"x")
    assert (header.code, body) == (SEND, b"x")


@pytest.mark.parametrize(
    "body", [b"{", b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{0:"a:70000"}}]}', b"[]"]
)
@fronted(advertised=AddressTemplate("{broker}-{id}:{port}"))
async def test_route_that_cannot_be_mapped_is_an_error(world: FrontFixture, body: bytes) -> None:
    header, answered = await (await world.client()).ask(105, body)
    if body == b"[]" or b"70000" not in body:
        assert (header.code, answered) == (1, b"")
        assert "cannot map the addresses" in str(header.remark)
    else:
        assert b"70000" not in answered


@fronted
async def test_broker_and_admin_requests_are_refused_at_the_name_server(world: FrontFixture) -> None:
    client = await world.client()
    for code in (100, 102, 103, 104, 205, 216, 217, 318, 322, 901, 904, 1001, 1013):
        assert (await client.ask(code))[0].code == 3
    client.send(103, flag=ONE_WAY)
    assert (await client.ask(206, b"topics"))[1] == b"topics"
    assert {header.code for header, _ in world.server.requests} == {106, 206}


@fronted(allowed_codes=frozenset({205}))
async def test_refused_request_passes_if_allowed(world: FrontFixture) -> None:
    client = await world.client()
    assert [(await client.ask(code))[0].code for code in (205, 216)] == [205, 3]


def test_ports_of_brokers_are_kept_and_pinned_ones_are_never_others(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    ports = BrokerPorts(9879, file, {"c/0": 9882})
    assert next(ports.candidates("a/0")) == 9879
    ports.keep("a/0", 9879)
    assert next(ports.candidates("b/0")) == 9885
    ports.keep("b/0", 9885)
    again = BrokerPorts(9879, file, {"b/0": 9885})
    assert [next(again.candidates(broker)) for broker in ("a/0", "b/0")] == [9879, 9885]
    assert [len(list(again.candidates(broker))) > 1 for broker in ("a/0", "b/0")] == [True, False]
    again.forget("a/0")
    assert next(BrokerPorts(9879, file).candidates("d/0")) == 9879
    file.write_text('{"a/0": "9879"}')
    with pytest.raises(ValueError, match="has no ports of brokers"):
        BrokerPorts(9879, file)


@pytest.mark.parametrize("text", ["mq", "mq-{broker}-{id}", "mq:{broker}", "mq:70000"])
def test_template_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT with"):
        AddressTemplate.parse(text)


@fronted(advertised=AddressTemplate.parse("mq.example.org:9880"))
async def test_fixed_address_is_that_of_the_first_broker_alone(world: FrontFixture) -> None:
    client = await world.client()
    assert b'0:"mq.example.org:9880"' in (await client.ask(105))[1]
    first = world.server.route()
    world.server.brokers["broker-b"] = {0: "10.0.0.1:10911"}
    header, body = await client.ask(105)
    assert (header.code, body) == (1, b"")
    assert "broker-a/0 and broker-b/0 would both have the address mq.example.org:9880" in str(header.remark)
    assert b'0:"mq.example.org:9880"' in (await client.ask(105, first))[1]


@pytest.mark.parametrize(("text", "shared"), [("mq:{id}9876", "mq:09876"), ("{broker}:9876", "a:9876")])
def test_gateway_does_not_start_if_brokers_would_share_an_address(text: str, shared: str) -> None:
    async def play() -> None:
        server = StubServer(brokers={"b": {0: "x:1"}, "a": {0: "x:2", 1: "x:3"}})
        with pytest.raises(CannotListen, match=f"would both have the address {shared}"):
            async with front(server, advertised=AddressTemplate.parse(text)):
                pass

    uvloop.run(play())


def test_gateway_on_a_fixed_port_has_brokers_three_apart_with_vip_ports() -> None:
    async def play(port: int) -> None:
        server = StubServer(brokers={"b": {0: "x:1"}, "a": {0: "x:2", 1: "x:3"}})
        async with front(server, listen=Address(HOST, port), has_vip_ports=True) as world:
            ports = await world.gateway.table.ports_of(world.gateway.table.brokers())
            found = {str(broker): broker_port - port for broker, broker_port in ports.items()}
            assert found == {"a/0": 3, "a/1": 6, "b/0": 9}
            await world.client(port + 7)

    uvloop.run(play(free_port()))
