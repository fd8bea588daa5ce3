"""The gateway as RocketMQ's name server, the ports of brokers, and their addresses for clients."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.listener import CannotListen
from gateway.rocketmq.brokers import AddressTemplate, BrokerPorts
from gateway.rocketmq.frame_relay import FrameHandling, FrameRelay
from kafka_why.connections.address import Address
from kafka_why.remoting.frames import FRAME_MAX_BYTES, Header, SerializeType, encode_frame
from kafka_why.remoting.strict_json import MalformedFrame
from tests.harness.examples import examples
from tests.harness.ports import free_port
from tests.harness.rocketmq_front import HOST, FrontFixture, StubServer, front, fronted
from tests.harness.waiting import asynchronous

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
async def test_refused_request_code_is_forwarded_if_allowed_by_an_option(world: FrontFixture) -> None:
    client = await world.client()
    assert [(await client.ask(code))[0].code for code in (205, 216)] == [205, 3]


def test_broker_ports_are_remembered_and_pinned_ports_are_reserved(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    ports = BrokerPorts(9879, file, {"c/0": 9882})
    assert next(ports.candidates("a/0")) == 9879
    ports.store("a/0", 9879)
    assert next(ports.candidates("b/0")) == 9885
    ports.store("b/0", 9885)
    again = BrokerPorts(9879, file, {"b/0": 9885})
    assert [next(again.candidates(broker)) for broker in ("a/0", "b/0")] == [9879, 9885]
    assert [len(list(again.candidates(broker))) > 1 for broker in ("a/0", "b/0")] == [True, False]
    again.forget("a/0")
    assert next(BrokerPorts(9879, file).candidates("d/0")) == 9879
    file.write_text('{"a/0": "9879"}')
    with pytest.raises(ValueError, match="has no ports of brokers"):
        BrokerPorts(9879, file)


@pytest.mark.parametrize("text", ["mq", "mq-{broker}-{id}", "mq:{broker}", "mq:70000"])
def test_invalid_rocketmq_address_template_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT with"):
        AddressTemplate.parse(text)


@fronted(advertised=AddressTemplate.parse("mq.example.org:9880"))
async def test_fixed_advertised_address_serves_only_one_broker(world: FrontFixture) -> None:
    client = await world.client()
    assert b'0:"mq.example.org:9880"' in (await client.ask(105))[1]
    first = world.server.route()
    world.server.brokers["broker-b"] = {0: "10.0.0.1:10911"}
    header, body = await client.ask(105)
    assert (header.code, body) == (1, b"")
    assert "broker-a/0 and broker-b/0 would both have the address mq.example.org:9880" in str(header.remark)
    assert b'0:"mq.example.org:9880"' in (await client.ask(105, first))[1]


@pytest.mark.parametrize(("text", "shared"), [("mq:{id}9876", "mq:09876"), ("{broker}:9876", "a:9876")])
@asynchronous
async def test_gateway_does_not_start_if_brokers_would_share_an_address(text: str, shared: str) -> None:
    server = StubServer(brokers={"b": {0: "x:1"}, "a": {0: "x:2", 1: "x:3"}})
    with pytest.raises(CannotListen, match=f"would both have the address {shared}"):
        async with front(server, advertised=AddressTemplate.parse(text)):
            pass


@fronted(
    server=lambda: StubServer(brokers={"b": {0: "x:1"}, "a": {0: "x:2", 1: "x:3"}}),
    listen=lambda: Address(HOST, free_port()),
    has_vip_ports=True,
)
async def test_brokers_with_vip_ports_are_three_ports_apart(world: FrontFixture) -> None:
    port = world.gateway.address.port
    ports = await world.gateway.table.open_ports(world.gateway.table.brokers())
    found = {str(broker): broker_port - port for broker, broker_port in ports.items()}
    assert found == {"a/0": 3, "a/1": 6, "b/0": 9}
    await world.client(port + 7)


FORWARD, HOLD, DROP = FrameHandling
HANDLING = {10: FORWARD, 34: HOLD, 40: DROP}


class Recorder:
    """A relay with what it has written and held."""

    def __init__(self, *, is_trusted: bool = False, suspends: bool = False) -> None:
        self.written, self.held, self._suspends = bytearray(), list[tuple[int, bytes]](), suspends
        self.relay = FrameRelay(
            FRAME_MAX_BYTES,
            lambda header, _: HANDLING[header.code],
            self._take,
            self.written.extend,
            is_trusted=is_trusted,
        )

    def _take(self, header: Header, frame: bytes, body_at: int) -> None:
        self.held.append((header.opaque, frame[body_at:]))
        self.relay.is_suspended = self._suspends


FRAMES = st.tuples(st.sampled_from(sorted(HANDLING)), st.sampled_from(SerializeType), st.binary(max_size=300))


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 120), min_size=1), st.booleans())
@examples(100)
def test_frames_are_forwarded_in_order_from_any_fragmentation(
    frames: list[tuple[int, SerializeType, bytes]], cuts: list[int], suspends: bool
) -> None:
    recorder = Recorder(suspends=suspends)
    encoded = [
        (code, number, encode_frame(Header(code, number, serialize_type=kind), body), body)
        for number, (code, kind, body) in enumerate(frames)
    ]
    data, own, turn = b"".join(frame for _, _, frame, _ in encoded), list[bytes](), 0
    while data:
        size = cuts[turn % len(cuts)]
        recorder.relay.feed(data[:size])
        own.append(encode_frame(Header(10, 1_000 + turn)))
        recorder.relay.insert(own[-1])
        if recorder.relay.is_suspended:
            recorder.relay.resume()
        data, turn = data[size:], turn + 1
    while recorder.relay.is_suspended:
        recorder.relay.resume()
    left = bytes(recorder.written)
    for frame in own:
        assert left.count(frame) == 1
        left = left.replace(frame, b"")
    assert left == b"".join(frame for code, _, frame, _ in encoded if code == 10)
    assert recorder.held == [(number, body) for code, number, _, body in encoded if code == 34]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ("00000003 00000000", "a frame of 3 bytes"),
        ("ffffffff 00000000", "a frame of -1 bytes"),
        ("01000001 00000000", "a frame of 16777217 bytes"),
        (b"GET / HTTP/1.1\r\n".hex(), "a frame of 1195725856 bytes"),
        (b"PROXY TCP4 1.2.3.4".hex(), "a frame of 1347571544 bytes"),
        ("00000010 0000000d", "a header of 13 bytes in a frame of 16"),
        ("00ffffff 00040001", "a header of 262145 bytes in a frame of 16777215"),
        ("00000006 09000002 0000", "serialization 9"),
        ("00000006 00000002 7b7b", "malformed"),
    ],
)
def test_malformed_frame_is_refused_before_its_bytes_are_kept(sent: str, why: str) -> None:
    recorder = Recorder()
    with pytest.raises(MalformedFrame, match=re.escape(why)):
        recorder.relay.feed(bytes.fromhex(sent))
    assert not recorder.written
    assert recorder.relay.buffered_bytes == 0


def test_unreadable_frame_of_a_broker_is_forwarded() -> None:
    recorder, frame = Recorder(is_trusted=True), bytes.fromhex("00000008 00000002 7b7b 0102")
    recorder.relay.feed(frame)
    assert recorder.written == frame
