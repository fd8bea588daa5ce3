"""The states and deadlines of a connection: what holds whatever its client, its kernel and its owner do."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fairness import CapacityLimiter
from gateway.limits import Limits
from gateway.metrics.numbers import GatewayCounts
from gateway.net.lifecycle import LINGER_S, ClientGone, ClientIdle, Deadline, Drained, SlowReader, Timers
from gateway.net.limits.buffers import ReceiveBufferLimit, WriteBufferLimit
from gateway.net.stream import ClientStream
from gateway.net.writing import ResponseSlot
from gateway.wire.framing import ProtocolError, framed
from tests.harness.served_client import NoSocketClient
from tests.harness.slow_socket import Socket
from tests.harness.still_time import StillLoop, in_still_time

IN_FLIGHT, SIZE = 4, 60
BYTES_MAX = 50, 150, 400  # for one request, for three, for more than are in flight
LIMITS = Limits(
    in_flight_per_connection=IN_FLIGHT,
    authentication_timeout_s=5.0,
    write_timeout_s=3.0,
    idle_timeout_s=20.0,
    frame_bytes=300,
    unauthenticated_frame_bytes=100,
)


class Play:
    """A stream between a client, its socket and the owner of the connection, who behaves like `Connection`.

    A request begins with how it is answered: at (o)nce, (l)ater, or by the connection's (t)ask. The one that
    (f)ails ends the connection. Its number follows, and is its answer.
    """

    def __init__(self, loop: StillLoop, *, authenticated: bool, bytes_max: int = BYTES_MAX[-1]) -> None:
        self.loop, self.socket, self.bytes_max = loop, Socket(loop), bytes_max
        self.open: list[tuple[ResponseSlot, bytes]] = []
        self.sent = 0
        self.wanted: set[str] = set()
        """Why the model reads nothing."""
        self.is_known = authenticated
        self.is_finishing = self.is_starting = False
        unread, received = WriteBufferLimit(10**9), ReceiveBufferLimit(10**9, 60.0)
        limits = replace(LIMITS, in_flight_bytes_per_connection=bytes_max)
        self.stream = self.socket.stream = ClientStream(
            limits,
            lambda _: None,
            GatewayCounts(),
            unread,
            received,
            CapacityLimiter(1),
            authenticated=authenticated,
        )
        self.stream.dispatcher.start_at_once = self._start_at_once
        self.stream.connection_made(self.socket)
        self.tasks = [loop.create_task(self._work()), loop.create_task(self._end())]

    def _start_at_once(self, request: bytes, place: ResponseSlot) -> bool:
        assert not (self.stream.ended.done() or self.is_finishing), "nothing is taken up at the end"
        assert not self.socket.held, "nor while the client does not read"
        assert "muted" not in self.wanted, "nor while it is throttled"
        assert not self.is_starting, "nor by the answer to another request that starts"
        self.is_starting = True
        try:
            return self._start(request, place)
        finally:
            self.is_starting = False

    def _start(self, request: bytes, place: ResponseSlot) -> bool:
        match request[:1]:
            case b"o":
                self.stream.answer(place, request[1:5])
            case b"l":
                self.open.append((place, request[1:5]))
            case b"f":
                self.stream.end(ValueError("it failed"))
            case _:
                return False
        return True

    async def _work(self) -> None:
        while True:
            request, place = await self.stream.dispatcher.take()
            await self.stream.dispatcher.wait_for_earlier(place)
            self.stream.answer(place, request[1:5])

    async def _end(self) -> None:
        await self.stream.ended
        self.tasks[0].cancel()
        self.stream.abort()

    def send(self, kinds: str) -> None:
        if self.socket.is_closed:
            return
        requests = []
        for kind in kinds:
            requests.append(framed(kind.encode() + b"%04d" % self.sent + bytes(SIZE - 5)))
            self.sent += 1
        self.stream.data_received(b"".join(requests))

    def send_too_much(self) -> None:
        if not self.socket.is_closed:
            self.stream.data_received((1_000).to_bytes(4, "big"))

    def answer(self, number: int) -> None:
        if self.open:
            place, answer = self.open.pop(number % len(self.open))
            self.stream.answer(place, answer)

    def end(self) -> None:
        """The owner learns of it later. Meanwhile the connection's other events come."""
        self.stream.end(ClientGone("by a test"))
        self.send("lo")
        self.answer(0)
        self.stream.set_held(held=True)
        self.stream.unmute_after(0.0)
        self.authenticate()

    async def answer_all(self) -> None:
        """Nothing is in the way of any request."""
        self.socket.take_all()
        for reason in sorted(self.wanted):
            self.hold(reason, holds=False)
        await self.loop.advance(0.0)
        while self.open:
            self.answer(0)
            await self.loop.settle()
            self.check()

    def hold(self, reason: str, *, holds: bool) -> None:
        match reason:
            case "waiting":
                self.stream.set_waiting(waiting=holds)
            case "held":
                self.stream.set_held(held=holds)
            case "muted" if holds:
                self.stream.mute()
            case _:
                self.stream.unmute_after(0.0)
        self.wanted = self.wanted | {reason} if holds else self.wanted - {reason}

    def authenticate(self) -> None:
        if not self.socket.has_eof:
            self.is_known = True
            self.stream.authenticate()

    def finish(self) -> None:
        self.is_finishing = True
        self.stream.finish()

    def check(self) -> None:
        """Check what holds after each step."""
        assert self.socket.late == 0, "never an answer after the end"
        written = b"".join(self.socket.written)
        numbers = [int(written[at : at + 4]) for at in range(0, len(written), 4)]
        assert numbers == list(range(len(numbers))), "in the order of the requests"
        if self.stream.ended.done():
            assert self.loop.timers == 0, "every timer is cancelled"
            assert self.socket.is_closed
            return
        deadlines = ["idle", *["authentication"] * (not self.is_known), *["write"] * bool(self.socket.held)]
        assert self.loop.timers == len(deadlines) + self.socket.has_eof
        if self.is_finishing:
            assert not self.socket.is_paused, "the client's end is seen"
            assert self.socket.has_eof is (self.stream.unanswered == 0)
            return
        under_way = self.sent - len(numbers) + len(self.socket.held) // 4
        in_flight_max = IN_FLIGHT if self.is_known else 1
        is_full = under_way >= in_flight_max or under_way * SIZE >= self.bytes_max
        assert self.socket.is_paused is (is_full or bool(self.wanted)), "exactly while a reason is there"
        assert self.stream.unanswered <= in_flight_max


# None of these ends a connection: the deadlines are longer than all the steps together.
LIVE = st.one_of(
    st.text("olt", min_size=1, max_size=6).map(lambda kinds: ("send", kinds)),
    st.integers(0, 3).map(lambda number: ("answer", number)),
    st.tuples(st.sampled_from(["hold", "let go"]), st.sampled_from(["waiting", "held", "muted"])),
    st.sampled_from([("slow", None), ("quick", None), ("authenticate", None), ("advance", 0.05)]),
)
FINISH = st.tuples(
    st.just(("finish", None)), st.lists(st.one_of(LIVE, st.just(("send too much", None))), max_size=6)
)
END = st.sampled_from(
    [
        ("end", None),
        ("abort", None),
        ("lost", None),
        ("send too much", None),
        ("send", "f"),
        ("advance", 25.0),
    ]
)


async def take_step(play: Play, kind: str, value: Any) -> None:
    acts: dict[str, Callable[[], object]] = {
        "send": lambda: play.send(value),
        "send too much": play.send_too_much,
        "answer": lambda: play.answer(value),
        "hold": lambda: play.hold(value, holds=True),
        "let go": lambda: play.hold(value, holds=False),
        "slow": lambda: setattr(play.socket, "is_slow", True),
        "quick": play.socket.take_all,
        "authenticate": play.authenticate,
        "finish": play.finish,
        "end": play.end,
        "abort": play.stream.abort,
        "lost": play.socket.abort,
    }
    if kind == "advance":
        await play.loop.advance(value)
    else:
        acts[kind]()
    await play.loop.advance(0.0)
    play.check()


Steps = list[tuple[str, Any]]
SOME = st.lists(LIVE, max_size=15)


@given(SOME, st.booleans(), st.sampled_from(BYTES_MAX))
@in_still_time
async def test_every_request_is_answered_unless_its_connection_ends(
    loop: StillLoop, steps: Steps, authenticated: bool, bytes_max: int
) -> None:
    one = Play(loop, authenticated=authenticated, bytes_max=bytes_max)
    for kind, value in steps:
        await take_step(one, kind, value)
        assert not one.stream.ended.done()
    await one.answer_all()
    assert sum(map(len, one.socket.written)) == 4 * one.sent
    assert not one.stream.is_busy
    await take_step(one, "lost", None)
    await asyncio.gather(*one.tasks, return_exceptions=True)


@given(SOME, st.one_of(st.none(), FINISH), END, SOME, st.booleans())
@in_still_time
async def test_random_events_close_a_connection_exactly_once(
    loop: StillLoop,
    steps: Steps,
    finish: tuple[tuple[str, Any], Steps] | None,
    end: tuple[str, Any],
    after: Steps,
    known: bool,
) -> None:
    one = Play(loop, authenticated=known)
    for kind, value in [*steps, *([] if finish is None else [finish[0], *finish[1]])]:
        await take_step(one, kind, value)
        assert not one.stream.ended.done()
    for kind, value in [end, *after, ("lost", None)]:
        await take_step(one, kind, value)
    assert one.stream.ended.done()
    await asyncio.gather(*one.tasks, return_exceptions=True)


TIMEOUTS = Limits(authentication_timeout_s=5.0, idle_timeout_s=20.0, write_timeout_s=3.0)
MUTE_S = 7.0
SECONDS = {
    Deadline.AUTHENTICATION: 5.0,
    Deadline.IDLE: 20.0,
    Deadline.WRITE: 3.0,
    Deadline.MUTE: MUTE_S,
    Deadline.LINGER: LINGER_S,
}
ENDS: dict[Deadline, type[Exception]] = {
    Deadline.AUTHENTICATION: ProtocolError,
    Deadline.IDLE: ClientIdle,
    Deadline.WRITE: SlowReader,
    Deadline.LINGER: Drained,
}


@dataclass(eq=False)
class Client(NoSocketClient):
    """A connection that is watched."""

    unmuted: int = 0

    def unmute(self) -> None:
        self.unmuted += 1


def watch(timers: Timers, deadline: Deadline, client: Client) -> None:
    match deadline:
        case Deadline.AUTHENTICATION:
            timers.watch_authentication(client)
        case Deadline.IDLE:
            timers.watch_silence(client)
        case Deadline.WRITE:
            timers.watch_writing(client)
        case Deadline.MUTE:
            timers.unmute_after(MUTE_S, client.unmute)
        case Deadline.LINGER:
            timers.watch_linger(client)


@pytest.mark.parametrize("deadline", ENDS)
@in_still_time
async def test_client_is_closed_at_its_deadline_and_not_earlier(loop: StillLoop, deadline: Deadline) -> None:
    timers, client = Timers(TIMEOUTS, loop), Client()
    watch(timers, deadline, client)
    await loop.advance(SECONDS[deadline] - 0.1)
    assert (client.ends, timers.running) == ([], frozenset({deadline}))
    await loop.advance(0.2)
    assert [type(end) for end in client.ends] == [ENDS[deadline]]
    assert (timers.running, loop.timers) == (frozenset(), 0)


@in_still_time
async def test_write_timeout_restarts_when_the_client_reads_something(loop: StillLoop) -> None:
    timers, client = Timers(TIMEOUTS, loop), Client(held_bytes=100)
    timers.watch_writing(client)
    for _ in range(5):
        client.held_bytes -= 1
        await loop.advance(3)
    assert client.ends == []
    await loop.advance(3)
    assert str(client.ends[0]) == "it took none of 95 bytes for 3 s"


@in_still_time
async def test_throttled_client_is_unmuted_after_the_latest_throttle_time(loop: StillLoop) -> None:
    timers, client = Timers(TIMEOUTS, loop), Client()
    timers.unmute_after(2, client.unmute)
    timers.unmute_after(4, client.unmute)
    await loop.advance(3)
    assert client.unmuted == 0
    await loop.advance(2)
    assert client.unmuted == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "cancel"]), st.sampled_from(Deadline)),
        st.tuples(st.just("advance"), st.sampled_from([0.5, 2.0, 8.0, 25.0])),
        st.tuples(st.just("stop"), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
@in_still_time
async def test_running_timers_exclude_expired_and_cancelled_ones(
    loop: StillLoop, steps: list[tuple[str, Deadline | float | None]]
) -> None:
    timers, client, is_stopped = Timers(TIMEOUTS, loop), Client(), False
    due: dict[Deadline, float] = {}
    for kind, value in steps:
        if isinstance(value, Deadline) and kind == "set":
            watch(timers, value, client)
            if not is_stopped:
                due[value] = loop.time() + SECONDS[value]
        elif isinstance(value, Deadline):
            timers.cancel(value)
            due.pop(value, None)
        elif value is None:
            timers.stop()
            is_stopped, due = True, {}
        else:
            timers.heard_at_s = -100.0  # a client that was never heard
            await loop.advance(value)
            due = {deadline: at_s for deadline, at_s in due.items() if at_s > loop.time()}
        assert timers.running == due.keys()
        assert loop.timers == len(due)
    timers.stop()
    assert (timers.running, loop.timers) == (frozenset(), 0)
