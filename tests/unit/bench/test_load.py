"""The load clients send what they say, and count what comes back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from bench.load import frames
from bench.load.connection import Connection
from bench.load.load_result import WrongAnswer
from bench.load.pipes import Pipe, at_rates, closed
from bench.load.requests import Membership, is_commit, mixed_requests
from bench.load.topics import encoded
from connections.address import Address
from records.pack import PACK_MAX_REQUESTS, is_pack, slot_of, unpack
from records.partitioner import partition_of
from state.kafka.requests import OffsetCommit

MEMBER = Membership("g", "member-1", 1)
BEAT, COMMIT = frames.heartbeat(MEMBER), frames.commit(MEMBER, 7)
REBALANCE_IN_PROGRESS = 27

Answers = Callable[[int, bytes], bytes]
"""The response to a request, by its place on the connection and its bytes after the size."""


@asynccontextmanager
async def serving(answer: Answers, pause: asyncio.Event | None = None) -> AsyncIterator[Address]:
    """A server of frames. It reads nothing before `pause` is set."""

    clients: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.append(asyncio.current_task())
        place = 0
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                if pause is not None:
                    await pause.wait()
                size = int.from_bytes(await reader.readexactly(4))
                response = answer(place, await reader.readexactly(size))
                writer.write(len(response).to_bytes(4) + response)
                place += 1
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        try:
            yield Address(*server.sockets[0].getsockname()[:2])
        finally:
            await asyncio.gather(*(client for client in clients if client is not None))


@asynccontextmanager
async def piped(answer: Answers, pause: asyncio.Event | None = None) -> AsyncIterator[Pipe]:
    """A connection to such a server, for heartbeats."""
    async with serving(answer, pause) as address:
        pipe = await Pipe.open(address, [BEAT])
        try:
            yield pipe
        finally:
            pipe.close()
            await asyncio.sleep(0)


def no_error(_: int, request: bytes) -> bytes:
    template = BEAT if request[:2] == BEAT.head[4:6] else COMMIT
    return request[4:8] + template.no_error


def with_an_error(place: int, request: bytes) -> bytes:
    return no_error(place, request) if place % 4 else request[4:8] + b"\0" * 5 + b"\0\x1b\0"


def hang_up(*_: object) -> bytes:
    raise ConnectionError


def test_each_response_is_counted_and_errors_by_their_code() -> None:
    async def load() -> None:
        async with serving(with_an_error) as address:
            pipes = [await Pipe.open(address, [BEAT, COMMIT, BEAT, COMMIT]) for _ in range(3)]
            outcome = await closed(pipes, 8, 0.05)
            for pipe in pipes:
                pipe.close()
        assert outcome.responses >= 24
        assert 0 < outcome.errors[REBALANCE_IN_PROGRESS] <= outcome.responses / 4 + 3
        assert outcome.errors.keys() == {REBALANCE_IN_PROGRESS}
        assert len(outcome.due_s) == outcome.responses

    asyncio.run(load())


def out_of_order(*_: object) -> bytes:
    return b"\0\0\0\x05" + BEAT.no_error


@pytest.mark.parametrize(
    ("answer", "message"),
    [(out_of_order, "not the response to the oldest request"), (hang_up, "a connection ended")],
)
def test_a_connection_that_does_not_answer_in_order_is_no_figure(answer: Answers, message: str) -> None:
    async def load() -> None:
        async with piped(answer) as pipe:
            await closed([pipe], 2, 0)

    with pytest.raises(WrongAnswer, match=message):
        asyncio.run(load())


def test_latency_counts_from_when_a_request_was_due() -> None:
    async def load() -> None:
        reads = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, reads.set)
        async with piped(no_error, reads) as pipe:
            outcome = await at_rates([pipe], [(200, 0.1), (1_000, 0.1)])
        assert outcome.responses == pytest.approx(120, abs=2)
        assert outcome.errors == Counter()
        first, last = outcome.latency_s[0], outcome.latency_s[-1]
        assert first > 0.25
        assert last > 0.05

    asyncio.run(load())


def test_packs_are_of_one_partition_and_one_slot() -> None:
    members = [Membership(f"group-{n}", "m", 1) for n in range(300)]
    requests = mixed_requests(members, 3_000)
    groups = []
    for record in encoded(requests, partitions=3, packed=True):
        assert is_pack(record.value)
        values = [msgspec.json.decode(value) for value in unpack(record.value)]
        assert len(values) == record.requests <= PACK_MAX_REQUESTS
        assert {slot_of(value["group_id"]) for value in values} == {int(record.key)}
        assert {partition_of(value["group_id"], 3) for value in values} == {record.partition}
        groups += [value["group_id"] for value in values]
    assert Counter(groups) == Counter(request.group_id for request in requests)


@pytest.mark.parametrize("groups", [1, 20, 1_000])
def test_three_of_eight_requests_of_each_group_are_commits(groups: int) -> None:
    requests = mixed_requests([Membership(f"g-{n}", "m", 1) for n in range(groups)], 8 * groups)
    commits = Counter(request.group_id for request in requests if isinstance(request, OffsetCommit))
    assert set(commits.values()) == {3}
    assert sum(is_commit(n, groups) for n in range(8 * groups)) == 3 * groups


def test_a_request_on_a_connection_that_has_ended_fails_at_once() -> None:
    """Also if nothing was in flight when it ended: no response would ever come."""

    async def ask() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            ended = asyncio.Event()
            connection = await Connection.open(Address(*server.sockets[0].getsockname()[:2]))
            connection.on_lost = ended.set
            await ended.wait()
            with pytest.raises(WrongAnswer, match="the connection ended"):
                await connection.ask(frames.HEARTBEAT, group_id="g", generation_id=1, member_id="member-1")

    asyncio.run(asyncio.wait_for(ask(), 10))
