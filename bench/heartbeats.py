"""Heartbeats over the wire: one at a time, and many concurrently.

Many means 1,000 connections, distributed over the groups, with one heartbeat in flight on each: a consumer
has one connection and one request in flight, and a broker processes only one request of a connection at a
time. Each response is compared, byte for byte, with the one without an error.

The client must cost little. A request is made once, as bytes in which only the correlation id is replaced; a
response is compared without decoding; no task or future is created for a heartbeat. The load client's share
of a core is measured and printed beside each rate. If it is near 1.0, the client limits the rate, and the
server's own rate is higher.
"""

import asyncio
import random
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice

from bench.measure import percentile
from bench.member import Group, Member
from bench.report import Figure, say
from bench.sides import Sides
from bench.wire import CLIENT_ID, HEARTBEAT, Connection, WrongAnswer
from gateway.upstream.connections import Address
from gateway.wire import codec
from gateway.wire.framing import framed, request_header

GROUPS = (1, 20, 1_000)
CONNECTIONS = 1_000
LOST_AFTER_S = 60.0
PAUSE_MAX_S = 0.2

_INT32 = struct.Struct(">i")
_AT_IN_REQUEST, _AT_IN_ANSWER = (
    8,
    0,
)  # the position of the correlation id in a frame and in a response, in bytes
_INT32_MASK = 0x7FFFFFFF


@dataclass(frozen=True)
class Plan:
    """One side's share of a turn. `connections` is the number of connections of the concurrent heartbeats."""

    turns: int
    singles: int
    load_s: float
    connections: int = CONNECTIONS


@dataclass
class Beats:
    """Measurements: the seconds of each single heartbeat; of each turn the answered heartbeats per second,
    their number, and the cores that the load client used.
    """

    singles_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    client_cores: list[float] = field(default_factory=list)


def heartbeat_figures(groups: int, beats: Sides[Beats]) -> list[Figure]:
    """Return the quantiles of single heartbeats and the medians of the turns."""

    def figure(what: str, unit: str, of: Callable[[Beats], float]) -> Figure:
        sides = beats.map(of)
        return Figure(f"{groups:,} group{'s' * (groups > 1)}: {what}", unit, sides.ours, sides.kafkas)

    return [
        figure("heartbeat, one at a time, p50", "ms", lambda side: percentile(side.singles_s, 0.5) * 1e3),
        figure("heartbeat, one at a time, p99", "ms", lambda side: percentile(side.singles_s, 0.99) * 1e3),
        figure("heartbeats, many under way", "/s", lambda side: percentile(side.rates, 0.5)),
        figure("  the load client's part", "cores", lambda side: percentile(side.client_cores, 0.5)),
    ]


def measure_heartbeats(sides: Sides[Address], groups: int, plan: Plan) -> Sides[Beats]:
    """Measure heartbeats of this many groups, alternately ours and Kafka's, after a first turn for warm-up.

    Raises WrongAnswer for any response with an error.
    """
    return asyncio.run(_by_turns(sides, groups, plan))


async def _by_turns(sides: Sides[Address], groups: int, plan: Plan) -> Sides[Beats]:
    generators = Sides(
        ours=await LoadGenerator.formed(sides.ours, groups, plan.connections),
        kafkas=await LoadGenerator.formed(sides.kafkas, groups, plan.connections),
    )
    warming, beats = Sides(ours=Beats(), kafkas=Beats()), Sides(ours=Beats(), kafkas=Beats())
    for turn in range(plan.turns + 1):
        say(f"    turn {turn} of {plan.turns}" if turn else "    warming up")
        for generator, measured in zip(generators, beats if turn else warming, strict=True):
            await generator.one_at_a_time(plan.singles, measured)
            await generator.many(plan.load_s, measured)
    for generator in generators:
        await generator.leave()
        generator.close()
    return beats


class HeartbeatSession:
    """A connection, and the heartbeat of its member."""

    def __init__(self, member: Member, connection: Connection) -> None:
        fields = {
            "group_id": member.group.group_id,
            "generation_id": member.generation,
            "member_id": member.member_id,
        }
        request = codec.encode_request(*HEARTBEAT, 0, CLIENT_ID, fields)
        self.connection = connection
        self.sent_at_s = 0.0
        self._number = 0
        self._request = bytearray(framed(request))
        self._no_error = bytearray(codec.encode_response(request_header(request), {"error_code": 0}))

    def beat(self) -> None:
        """Send the next heartbeat."""
        self._number = (self._number + 1) & _INT32_MASK
        _INT32.pack_into(self._request, _AT_IN_REQUEST, self._number)
        _INT32.pack_into(self._no_error, _AT_IN_ANSWER, self._number)
        self.sent_at_s = time.perf_counter()
        self.connection.send(self._request)

    def is_answer(self, answer: bytes) -> bool:
        """Whether this is the response to the last heartbeat, without an error."""
        return answer == self._no_error


class Load:
    """Keeps one heartbeat in flight on each connection for a while, then waits for the last responses."""

    def __init__(self, sessions: Sequence[HeartbeatSession], seconds: float) -> None:
        self.latencies_s: list[float] = []
        self._hearts = sessions
        self._under_way = len(sessions)
        self._began_s = time.perf_counter()
        self._end_s = self._began_s + seconds
        self._last_s = self._began_s
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def took_s(self) -> float:
        """Return the seconds from the first request to the last response."""
        return self._last_s - self._began_s

    async def run(self) -> None:
        """Run the load. Raises WrongAnswer, and TimeoutError if responses are missing."""
        for session in self._hearts:
            session.connection.heard = partial(self._on_answer, session)
            session.connection.lost = partial(self._fail, "a connection ended")
            session.beat()
        async with asyncio.timeout(self._end_s - self._began_s + LOST_AFTER_S):
            await self._done

    def _on_answer(self, session: HeartbeatSession, answer: bytes) -> None:
        now_s = time.perf_counter()
        if not session.is_answer(answer):
            self._fail(f"not the response to a heartbeat: {answer.hex(' ')}")
            return
        self.latencies_s.append(now_s - session.sent_at_s)
        self._last_s = now_s
        if now_s < self._end_s:
            session.beat()
            return
        self._under_way -= 1
        if not self._under_way and not self._done.done():
            self._done.set_result(None)

    def _fail(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(WrongAnswer(why))


class LoadGenerator:
    """Groups of one member each at one server, and the connections for their heartbeats."""

    def __init__(self, groups: Sequence[Group], sessions: Sequence[HeartbeatSession]) -> None:
        self.groups = groups
        self._hearts = sessions
        self._waits = random.Random(7)
        self._next = cycle(sessions)

    @classmethod
    async def formed(cls, address: Address, groups: int, connections: int) -> "LoadGenerator":
        """Bring all groups to Stable, and connect."""
        run = uuid.uuid4()
        made = [Group(f"heartbeats-{run}-{number}") for number in range(groups)]
        members = [await group.add(address) for group in made]
        await asyncio.gather(*(member.enter() for member in members))
        more = islice(cycle(members), max(connections - groups, 0))
        sessions = [
            *(HeartbeatSession(member, member.connection) for member in members),
            *[HeartbeatSession(member, await Connection.open(address)) for member in more],
        ]
        return cls(made, sessions)

    async def one_at_a_time(self, rounds: int, beats: Beats) -> None:
        """Send one heartbeat at a time, for each group in turn, at random moments."""
        for session in islice(self._next, rounds):
            single = Load([session], 0)
            await single.run()
            beats.singles_s += single.latencies_s
            await asyncio.sleep(self._waits.uniform(0, PAUSE_MAX_S))

    async def many(self, seconds: float, beats: Beats) -> None:
        """Send heartbeats on all connections concurrently."""
        load, cpu_s = Load(self._hearts, seconds), time.process_time()
        await load.run()
        beats.client_cores.append((time.process_time() - cpu_s) / load.took_s)
        beats.rates.append(len(load.latencies_s) / load.took_s)
        beats.answered.append(len(load.latencies_s))

    async def leave(self) -> None:
        """End the groups."""
        await asyncio.gather(*(group.leave(group.members[0].connection) for group in self.groups))

    def close(self) -> None:
        """End all connections."""
        for session in self._hearts:
            session.connection.close()
