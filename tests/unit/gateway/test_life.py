"""The states of a connection, and what holds in each whatever its client, its kernel and its owner do."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import Limits
from gateway.metrics.numbers import GatewayCounts
from gateway.net.lifecycle import ClientGone, Drained
from gateway.net.limits.buffers import ReceiveBufferLimit, WriteBufferLimit
from gateway.net.stream import ClientStream
from gateway.net.writing import ResponseSlot
from gateway.wire.framing import framed
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
            limits, lambda _: None, GatewayCounts(), unread, received, authenticated=authenticated
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
        self.stream.hold(held=True)
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
                self.stream.pause(paused=holds)
            case "held":
                self.stream.hold(held=holds)
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
async def test_each_request_is_answered_unless_the_connection_ends(
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


@in_still_time
async def test_client_that_closes_a_draining_connection_counts_as_drained(loop: StillLoop) -> None:
    one = Play(loop, authenticated=True)
    one.finish()
    await loop.settle()
    one.socket.abort()
    await loop.settle()
    assert isinstance(one.stream.ended.result(), Drained)
    await asyncio.gather(*one.tasks, return_exceptions=True)
