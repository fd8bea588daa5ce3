"""The gateway at the port of a RocketMQ broker: what passes, bounds, and ends of connections."""

import asyncio
import struct
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gateway.rocketmq.backend import AskBroker
from gateway.rocketmq.options import rocketmq_limits
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, encode_frame, response_to
from tests.harness.rocketmq_front import HOST, OLD, FrontFixture, RawPeer, StubServer, fronted
from tests.harness.waiting import until

SEND, PULL, HEART_BEAT, LIST, NOTIFY, ONE_WAY = 310, 11, 34, 38, 40, 2
MIB = 1024 * 1024


async def ask_and_return(request: Header, _: bytes, ask_broker: AskBroker) -> bytes:
    header, body = await ask_broker()
    return encode_frame(response_to(request, header.code), b"own:" + body)


async def never(_: Header, __: bytes, ask_broker: AskBroker) -> bytes:
    await ask_broker()
    raise AssertionError("the broker does not answer")


# What passes at a broker's port.


@fronted
async def test_remoting_frames_pass_unchanged_except_the_brokers_notifications(world: FrontFixture) -> None:
    world.server.is_manual = True
    client, broker = await world.joined()
    sent = Header(SEND, 7, language="GO", version=317, ext_fields={"z": "1", "a": "é"})
    client.writer.write(encode_frame(sent, b"body"))
    assert await broker.receive() == (sent, b"body")
    broker.send(NOTIFY, opaque=7, flag=ONE_WAY)
    broker.send(RequestCode.CHECK_TRANSACTION_STATE, b"message", opaque=7)
    asked, body = await client.receive()
    assert (asked.code, body) == (RequestCode.CHECK_TRANSACTION_STATE, b"message")
    client.answer(asked, 0, b"state")
    assert (await broker.receive())[1] == b"state"
    broker.answer(sent, 0, b"stored")
    assert (await client.receive())[1] == b"stored"
    assert world.counts.swallowed == 1
    assert world.counts.passed == {SEND: 1}
    assert world.counts.responses == {(SEND, 0): 1}


@fronted
async def test_remoting_requests_between_brokers_are_refused(world: FrontFixture) -> None:
    client = await world.at_broker()
    for code in (43, 45, 902, 908, 1007, 1011):
        assert (await client.ask(code))[0].code == 3
    assert (await client.ask(513, ext_fields={"force": "true"}))[0].code == 3
    assert (await client.ask(513))[0].code == 513


@fronted
async def test_group_request_reaches_the_broker_unchanged_and_gets_one_response(world: FrontFixture) -> None:
    world.sessions.answers[HEART_BEAT] = ask_and_return
    client = await world.at_broker()
    assert (await client.ask(HEART_BEAT, b"{}", ext_fields={"Signature": "s"}))[1] == b"own:{}"
    header, body = world.server.requests[-1]
    assert (header.code, header.ext_fields, body) == (HEART_BEAT, {"Signature": "s"}, b"{}")
    client.send(HEART_BEAT, flag=ONE_WAY)
    assert (await client.ask(SEND))[0].code == SEND


@fronted
async def test_late_answer_of_the_broker_is_not_forwarded(world: FrontFixture) -> None:
    async def impatient(request: Header, _: bytes, ask_broker: AskBroker) -> bytes:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ask_broker()
        return encode_frame(response_to(request, 1))

    world.sessions.answers[HEART_BEAT] = impatient
    world.server.is_manual = True
    client, broker = await world.joined()
    assert (await client.ask(HEART_BEAT, opaque=5))[0].code == 1
    asked, _ = await broker.receive()
    broker.answer(asked, 0, b"late")
    client.send(SEND, opaque=6)
    broker.answer((await broker.receive())[0], 0, b"next")
    assert (await client.receive())[1] == b"next"


@fronted
async def test_opaque_of_an_unanswered_request_cannot_be_reused(world: FrontFixture) -> None:
    world.sessions.answers[LIST] = ask_and_return
    world.server.unanswered = {LIST, PULL}
    for codes in ((LIST, PULL), (PULL, LIST), (LIST, LIST)):
        client = await world.at_broker()
        with capture_logs() as logs:
            for code in codes:
                client.send(code, opaque=9)
            assert await client.is_closed()
            await until(lambda: logs)
        assert "opaque 9 is that of an unanswered request" in logs[0]["why"]


@fronted
async def test_slow_or_failing_group_request_does_not_affect_other_requests(world: FrontFixture) -> None:
    async def broken(*_: object) -> bytes:
        raise ValueError("a fault")

    world.sessions.answers |= {HEART_BEAT: never, LIST: broken}
    world.server.unanswered = {HEART_BEAT}
    client = await world.at_broker()
    client.send(HEART_BEAT)
    with capture_logs() as logs:
        assert (await client.ask(LIST))[0].code == 1
    assert [entry["event"] for entry in logs] == ["a request failed"]
    assert (await client.ask(SEND))[0].code == SEND


@fronted
async def test_gateways_own_frames_never_split_a_forwarded_frame(world: FrontFixture) -> None:
    world.sessions.answers[LIST] = ask_and_return
    world.server.is_manual = True
    client, broker = await world.joined()
    client.send(LIST, b"l", opaque=1)
    asked, _ = await broker.receive()
    large = encode_frame(response_to(Header(PULL, 2), 0), bytes(range(256)) * 1024)
    client.send(PULL, opaque=2)
    await broker.receive()
    broker.writer.write(large[:100_000])
    await until(lambda: world.counts.sent_bytes >= 100_000)
    world.sessions.made[-1].send(encode_frame(Header(NOTIFY, 0, flag=ONE_WAY)))
    broker.writer.write(large[100_000:])
    broker.answer(asked, 0, b"x")
    received = [await client.receive() for _ in range(3)]
    assert [(header.code, len(body)) for header, body in received] == [(0, 262_144), (NOTIFY, 0), (0, 5)]


# Bounds.


async def write_until_blocked(peer: RawPeer, frame: bytes) -> int:
    """Write frames until the other side takes no more for 0.3 s. Return the bytes that it took."""
    written = 0
    while True:
        peer.writer.write(frame)
        written += len(frame)
        try:
            async with asyncio.timeout(0.3):
                await peer.writer.drain()
        except TimeoutError:
            return written


@fronted(limits=rocketmq_limits())
async def test_backpressure_of_one_side_pauses_the_other_without_losing_bytes(world: FrontFixture) -> None:
    world.server.is_manual = True
    client, broker = await world.joined()
    frame = encode_frame(Header(SEND, 1, flag=ONE_WAY), bytes(60_000))
    for source, sink in ((client, broker), (broker, client)):
        sink.writer.transport.pause_reading()  # type: ignore[attr-defined]
        written = await write_until_blocked(source, frame)
        assert written < 24 * MIB  # of which the gateway has 1 MiB, and sockets the rest
        (held,) = world.gateway.numbers()["unread_bytes"].values()
        assert held[0] < 2 * MIB
        sink.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(written // len(frame)):
            assert len((await sink.receive())[1]) == 60_000


@fronted
async def test_client_with_too_many_unanswered_requests_is_paused(world: FrontFixture) -> None:
    answered = asyncio.Event()
    taken = 0

    async def slow(request: Header, body: bytes, _: AskBroker) -> bytes:
        nonlocal taken
        taken += 1
        await answered.wait()
        return encode_frame(response_to(request, 0), body)

    world.sessions.answers[LIST] = slow
    client = await world.at_broker()
    for _ in range(200):
        client.send(LIST, bytes(1_000))
    await until(lambda: taken == 64)
    client.send(SEND)
    await (await world.at_broker()).ask(PULL)
    assert world.counts.passed == {PULL: 1}
    answered.set()
    opaques = sorted([(await client.receive())[0].opaque for _ in range(201)])
    assert (taken, opaques) == (200, [*range(1, 202)])


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "a frame of"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame of"),
        (struct.pack(">ii", 30, 26) + b'{"code":310,"code":34,"o":1}', "malformed"),
        (encode_frame(Header(LIST, 1), bytes(MIB)), "a request 38 of"),
    ],
)
@fronted
async def test_malformed_frame_closes_only_its_connection(world: FrontFixture, sent: bytes, why: str) -> None:
    world.sessions.answers[LIST] = never
    bad, good = await world.at_broker(), await world.at_broker()
    half = encode_frame(Header(SEND, 1), bytes(1_000))[:500]
    (await world.at_broker()).writer.write(half)
    with capture_logs() as logs:
        bad.writer.write(sent)
        assert await bad.is_closed()
        await until(lambda: logs)
    assert [entry["event"] for entry in logs] == ["a connection was closed"]
    if why != "malformed":
        assert why in logs[0]["why"]
    assert (await good.ask(SEND))[0].code == SEND


@fronted(limits=replace(rocketmq_limits(), unanswered_bytes=4 * MIB, write_timeout_s=2.0))
async def test_clients_with_incomplete_requests_are_paused_and_then_closed(world: FrontFixture) -> None:
    world.sessions.answers[LIST] = never
    half = encode_frame(Header(LIST, 1), bytes(MIB - 1_000))[:-1]
    senders = [await world.at_broker() for _ in range(16)]
    with capture_logs() as logs:
        for sender in senders:
            sender.writer.write(half)
        other = await world.at_broker()
        assert (await other.ask(SEND, bytes(MIB)))[0].code == SEND
        held = world.gateway.numbers()["held_bytes"][()]
        assert held[0] < 8 * MIB
        ends = [asyncio.create_task(sender.is_closed()) for sender in senders]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await until(lambda: logs)
    assert "all clients had sent too much" in logs[0]["why"]
    for end in ends:
        end.cancel()


@fronted(limits=rocketmq_limits({"serverChannelMaxIdleTimeSeconds": "1"}))
async def test_idle_connection_is_closed(world: FrontFixture) -> None:
    client, broker = await world.joined()
    assert await client.is_closed()
    assert await world.sessions.made[0].reasons.get() == "the client sent no request for too long"
    assert broker.reader.at_eof()


# The ends of connections.


@fronted
async def test_disconnect_of_one_side_closes_the_other_after_its_last_bytes(world: FrontFixture) -> None:
    client, broker = await world.joined()
    client.send(15, b"offset", flag=ONE_WAY)
    client.writer.close()
    await until(lambda: [body for _, body in world.server.requests] == [b"", b"offset"])
    await until(broker.reader.at_eof)
    client, broker = await world.joined()
    broker.send(SEND, b"last")
    broker.writer.close()
    assert (await client.receive())[1] == b"last"
    assert await client.is_closed()
    reasons = [await session.reasons.get() for session in world.sessions.made]
    assert reasons == ["the client ended the connection", "the broker ended the connection"]


@fronted
async def test_connections_are_refused_while_the_broker_is_down(world: FrontFixture) -> None:
    world.server.stop()
    assert await (await world.at_broker()).is_closed()
    assert world.sessions.made == []
    with pytest.raises(ConnectionRefusedError):
        await world.at_broker()
    assert world.counts.upstream_connects["failed"] == 1
    await world.server.start()
    await until(lambda: world.gateway.table._entries["broker-a/0"].servers)
    assert (await (await world.at_broker()).ask(SEND))[0].code == SEND


@fronted
async def test_draining_gateway_sends_newer_clients_away_and_serves_older_ones(world: FrontFixture) -> None:
    new, old = await world.at_broker(), await world.at_broker()
    await new.ask(SEND)
    await old.ask(SEND)
    draining = asyncio.create_task(world.gateway.drain(0.5))
    await until(lambda: world.gateway.is_draining)
    assert (await new.ask(SEND))[0].code == 1500
    assert (await new.ask(RequestCode.UNREGISTER_CLIENT))[0].code == RequestCode.UNREGISTER_CLIENT
    assert (await old.ask(SEND, version=OLD))[0].code == SEND
    await draining
    assert await old.is_closed()
    assert [one.reasons.get_nowait() for one in world.sessions.made] == ["the gateway has stopped"] * 2
    with pytest.raises(ConnectionError):
        await world.client()


@fronted
async def test_broker_with_a_new_address_keeps_its_port_and_loses_connections(world: FrontFixture) -> None:
    client, _ = await world.joined()
    other = StubServer()
    await other.start()
    world.server.brokers["broker-a"] = {0: other.address}
    await (await world.client()).ask(105)
    assert await client.is_closed()
    moved = await world.at_broker()
    assert moved.writer.get_extra_info("peername") == client.writer.get_extra_info("peername")
    await moved.ask(SEND, b"there")
    assert other.requests[-1][1] == b"there"
    other.stop()


@fronted
async def test_vanished_brokers_port_stays_while_a_name_server_may_restart(world: FrontFixture) -> None:
    client, _ = await world.joined()
    await world.gateway.table.refresh([])
    assert (await client.ask(SEND))[0].code == SEND


# What the broker sees.


@fronted
async def test_broker_gets_the_clients_address(world: FrontFixture) -> None:
    client, _ = await world.joined()
    (host, port), (own, own_port) = (client.writer.get_extra_info(name) for name in ("sockname", "peername"))
    assert world.server.lines == [f"PROXY TCP4 {host} {own} {port} {own_port}\r\n".encode()]
    assert world.sessions.made[0].client_address == f"{HOST}:{port}"
    assert world.sessions.made[0].connection == f"gw/s1/broker-a/0/{HOST}:{port}#1"
