"""The stages of the time of one heartbeat through the gateway, from the system calls of the processes.

Heartbeats of one member go through a gateway, one at a time, and are answered by the replica. strace notes
when the gateway and the replica read and write their sockets. The group's id marks what is of a heartbeat.
The same heartbeats are timed without strace first, because it slows both processes.
"""

import argparse
import asyncio
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load import frames
from bench.load.pipes import Pipe, closed
from bench.load.topics import TopicsClient
from bench.rows.bench import AT_ONCE_MS
from bench.stats import percentile
from bench.systems import BEHIND_GATEWAY, COORDINATOR, GATEWAY, PREFIX, Running, RunningSystems
from cli.processes.child import family
from kafka_why.cli.output import configure_logs

STAGES = (
    ("gateway: read the request, until its record is sent", 0, 1),
    ("broker: append it and wake the replica up", 1, 2),
    ("replica: decode, decide, encode, until the answer is sent", 2, 3),
    ("broker: append it and wake the gateway up", 3, 4),
    ("gateway: read the answer, until it is written to the client", 4, 5),
)
WARM_UP = 200
PAUSE_S = 0.02
# strace's line: thread, seconds since the epoch, call, file descriptor, the rest with the bytes.
_CALL = re.compile(r"^(\d+)\s+(\d+\.\d+) (\w+)(?:\((\d+)| resumed>)(.*)$")
_READS = ("read", "recvfrom", "recvmsg")
_WRITES = ("write", "writev", "sendto", "sendmsg")


@dataclass(frozen=True)
class Call:
    """A read or a write of a socket, at a time in seconds."""

    at_s: float
    is_read: bool
    fd: str
    is_marked: bool


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__)
    parser.add_argument("--heartbeats", type=int, default=300)
    given = parser.parse_args()
    if shutil.which("strace") is None:
        parser.error("strace is not installed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    configure_logs()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        running = Running(Path(folder) / "systems", AT_ONCE_MS, packed=False)
        try:
            print(measure(running.world, Path(folder), given.heartbeats))
        finally:
            running.close()


def measure(world: RunningSystems, folder: Path, heartbeats: int) -> str:
    """Send the heartbeats and return the table. Raises RuntimeError if the calls cannot be matched."""
    marker = f"stages-{uuid.uuid4().hex[:8]}"
    with world.alone(BEHIND_GATEWAY), TopicsClient(world.servers, PREFIX, packed=False) as client:
        (member,) = client.form([marker])
        heartbeat = frames.heartbeat(member)
        plain_s = asyncio.run(_heartbeats(world, heartbeat, WARM_UP, heartbeats))
        replica = _replica_of(world)
        with _traced(world.pids[GATEWAY], folder / "gateway"), _traced(replica, folder / "replica"):
            traced_s = asyncio.run(_heartbeats(world, heartbeat, WARM_UP, heartbeats))
    gateway, replica_calls = (_calls(folder / name, marker) for name in ("gateway", "replica"))
    return _table(list(_walks(gateway, replica_calls)), plain_s, traced_s)


async def _heartbeats(
    world: RunningSystems, heartbeat: frames.Template, warm_up: int, number: int
) -> list[float]:
    pipe = await Pipe.open(world.ours, [heartbeat])
    seconds = []
    try:
        for i in range(warm_up + number):
            outcome = await closed([pipe], 1, 0)
            if i >= warm_up:
                seconds += outcome.latency_s
            await asyncio.sleep(PAUSE_S)
    finally:
        pipe.close()
    return seconds


def _replica_of(world: RunningSystems) -> int:
    for pid in family(world.pids[COORDINATOR]):
        if b"streaming.replica" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise RuntimeError("the coordinator has no replica")


@contextmanager
def _traced(pid: int, output: Path) -> Iterator[None]:
    """Note a process's reads and writes in a file."""
    calls = ",".join((*_READS, *_WRITES))
    command = [
        "strace",
        "-f",
        "-ttt",
        "-s",
        "4096",
        "-e",
        f"trace={calls}",
        "-p",
        str(pid),
        "-o",
        str(output),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        try:
            if "attached" not in strace.stderr.readline():
                raise RuntimeError("strace may not attach to processes here")
            yield
        finally:
            strace.send_signal(signal.SIGINT)
            strace.communicate()


def _calls(trace: Path, marker: str) -> list[Call]:
    """Yield the calls of all threads, as they return. Of the two lines of a call that waits, the second
    counts.
    """
    found, begun = [], {}
    for line in trace.read_text(errors="replace").splitlines():
        if (match := _CALL.match(line)) is None:
            continue
        thread, at_s, name, fd, rest = match.groups()
        if "<unfinished ...>" in rest:
            begun[thread] = fd
            continue
        fd = fd or begun.pop(thread, "")
        found.append(Call(float(at_s), name in _READS, fd, marker in rest))
    return found


def _walks(gateway: Sequence[Call], replica: Sequence[Call]) -> Iterator[tuple[float, ...]]:
    """Yield the times at which each heartbeat passed the ends of the stages."""
    marked = [place for place, call in enumerate(gateway) if call.is_marked]
    for places in zip(marked, marked[1:], marked[2:], strict=False):
        request, sent, answer = (gateway[place] for place in places)
        if (request.is_read, sent.is_read, answer.is_read) != (True, False, True):
            continue
        between = [call for call in replica if call.is_marked and sent.at_s < call.at_s < answer.at_s]
        written = next(
            (call for call in gateway[places[2] :] if call.fd == request.fd and not call.is_read), None
        )
        if [call.is_read for call in between] == [True, False] and written is not None:
            yield tuple(call.at_s for call in (request, sent, *between, answer, written))


def _table(walks: list[tuple[float, ...]], plain_s: list[float], traced_s: list[float]) -> str:
    if not walks:
        raise RuntimeError("no heartbeat was found in the system calls")
    lines = [f"{'stage, ms':<64}{'p50':>8}{'p90':>8}"]

    def add(name: str, seconds: list[float]) -> None:
        lines.append(
            f"{name:<64}{percentile(seconds, 0.5) * 1e3:>8.2f}{percentile(seconds, 0.9) * 1e3:>8.2f}"
        )

    for name, begin, end in STAGES:
        add(name, [walk[end] - walk[begin] for walk in walks])
    add(f"all stages of {len(walks)} heartbeats", [walk[-1] - walk[0] for walk in walks])
    add("the client waits, with strace", traced_s)
    add("the client waits, without strace", plain_s)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
