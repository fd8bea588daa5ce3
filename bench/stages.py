"""The stages of the time of one heartbeat through the gateway, from the system calls of the processes.

Heartbeats of one member pass through a gateway, one at a time, and the replica answers them. strace records
when the gateway and the replica read and write their sockets. The calls of a heartbeat are recognized by the
group's id. The same heartbeats are timed without strace first, because it slows both processes.
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
from bench.load.pipes import Pipe, run_closed_loop
from bench.load.topics import TopicsClient
from bench.rows.bench import NO_DELAY_MS
from bench.stats import percentile
from bench.systems import BEHIND_GATEWAY, COORDINATOR, GATEWAY, PREFIX, RunningSystems, SystemProcesses
from cli.processes.child import family
from kafka_why.cli.output import configure_logs

# Name, and the places of the begin and of the end among the times of `_stage_times`.
STAGES = (
    ("gateway: read the request, until its record is sent", 0, 1),
    ("broker: append it and wake the replica up", 1, 2),
    ("replica: decode, decide, encode, until the answer is sent", 2, 3),
    ("broker: append it and wake the gateway up", 3, 4),
    ("gateway: read the answer, until it is written to the client", 4, 5),
)
WARM_UP = 200
PAUSE_S = 0.02
# Groups of strace's line: thread, seconds since the epoch, call, file descriptor, the rest with the bytes.
_CALL = re.compile(r"^(\d+)\s+(\d+\.\d+) (\w+)(?:\((\d+)| resumed>)(.*)$")
_READS = ("read", "recvfrom", "recvmsg")
_WRITES = ("write", "writev", "sendto", "sendmsg")


@dataclass(frozen=True)
class Call:
    """A read or a write of a socket. `is_marked` is True if its data has the id of the measured group."""

    at_s: float
    is_read: bool
    fd: str
    is_marked: bool


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__)
    parser.add_argument("--heartbeats", type=int, default=300)
    args = parser.parse_args()
    if shutil.which("strace") is None:
        parser.error("strace is not installed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    configure_logs()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        processes = SystemProcesses(Path(folder) / "systems", NO_DELAY_MS, packed=False)
        try:
            print(measure(processes.running, Path(folder), args.heartbeats))
        finally:
            processes.close()


def measure(systems: RunningSystems, folder: Path, heartbeats: int) -> str:
    """Send the heartbeats and return the table. Raises RuntimeError if the calls cannot be matched."""
    marker = f"stages-{uuid.uuid4().hex[:8]}"
    with systems.run_only(BEHIND_GATEWAY), TopicsClient(systems.servers, PREFIX, packed=False) as client:
        (member,) = client.form_groups([marker])
        heartbeat = frames.heartbeat(member)
        plain_s = asyncio.run(_heartbeats(systems, heartbeat, WARM_UP, heartbeats))
        replica = _replica_of(systems)
        with _traced(systems.pids[GATEWAY], folder / "gateway"), _traced(replica, folder / "replica"):
            traced_s = asyncio.run(_heartbeats(systems, heartbeat, WARM_UP, heartbeats))
    gateway_calls, replica_calls = (_calls(folder / name, marker) for name in ("gateway", "replica"))
    return _table(list(_stage_times(gateway_calls, replica_calls)), plain_s, traced_s)


async def _heartbeats(
    systems: RunningSystems, heartbeat: frames.Template, warm_up: int, number: int
) -> list[float]:
    """Send heartbeats, one at a time. Return the seconds of each after the warm-up."""
    pipe = await Pipe.open(systems.ours, [heartbeat])
    seconds = []
    try:
        for i in range(warm_up + number):
            outcome = await run_closed_loop([pipe], depth=1, seconds=0)  # ends after the first response
            if i >= warm_up:
                seconds += outcome.latency_s
            await asyncio.sleep(PAUSE_S)
    finally:
        pipe.close()
    return seconds


def _replica_of(systems: RunningSystems) -> int:
    for pid in family(systems.pids[COORDINATOR]):
        if b"streaming.replica" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise RuntimeError("the coordinator has no replica")


@contextmanager
def _traced(pid: int, output: Path) -> Iterator[None]:
    """Record a process's reads and writes in a file until the block ends."""
    call_names = ",".join((*_READS, *_WRITES))
    command = [
        "strace",
        "-f",
        "-ttt",
        "-s",
        "4096",
        "-e",
        f"trace={call_names}",
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
    """Return the calls of all threads in the order in which they returned.

    strace writes two lines for a call that blocks. The first has the file descriptor, the second the data.
    """
    calls, fd_of_unfinished = [], {}
    for line in trace.read_text(errors="replace").splitlines():
        if (match := _CALL.match(line)) is None:
            continue
        thread, at_s, name, fd, rest = match.groups()
        if "<unfinished ...>" in rest:
            fd_of_unfinished[thread] = fd
            continue
        fd = fd or fd_of_unfinished.pop(thread, "")
        calls.append(Call(float(at_s), name in _READS, fd, marker in rest))
    return calls


def _stage_times(gateway: Sequence[Call], replica: Sequence[Call]) -> Iterator[tuple[float, ...]]:
    """Yield for each heartbeat the times at which its stages began, and the end of the last one.

    The gateway's marked calls are the request that it reads, the record that it sends, and the answer that it
    reads. A response to a client has no group id, so it is the next write to the request's socket.
    """
    marked = [place for place, call in enumerate(gateway) if call.is_marked]
    for places in zip(marked, marked[1:], marked[2:], strict=False):
        request, sent, answer = (gateway[place] for place in places)
        if (request.is_read, sent.is_read, answer.is_read) != (True, False, True):
            continue
        in_replica = [call for call in replica if call.is_marked and sent.at_s < call.at_s < answer.at_s]
        response = next(
            (call for call in gateway[places[2] :] if call.fd == request.fd and not call.is_read), None
        )
        if [call.is_read for call in in_replica] == [True, False] and response is not None:
            yield tuple(call.at_s for call in (request, sent, *in_replica, answer, response))


def _table(heartbeats: list[tuple[float, ...]], plain_s: list[float], traced_s: list[float]) -> str:
    if not heartbeats:
        raise RuntimeError("no heartbeat was found in the system calls")
    lines = [f"{'stage, ms':<64}{'p50':>8}{'p90':>8}"]

    def add(name: str, seconds: list[float]) -> None:
        lines.append(
            f"{name:<64}{percentile(seconds, 0.5) * 1e3:>8.2f}{percentile(seconds, 0.9) * 1e3:>8.2f}"
        )

    for name, begin, end in STAGES:
        add(name, [times[end] - times[begin] for times in heartbeats])
    add(f"all stages of {len(heartbeats)} heartbeats", [times[-1] - times[0] for times in heartbeats])
    add("the client waits, with strace", traced_s)
    add("the client waits, without strace", plain_s)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
