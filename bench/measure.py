"""The measurements; each returns plain numbers."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from bench.asker import Asker
from bench.groups import heartbeat_request, join_request

CLOCK_TICKS_PER_S = 100


def percentile(values: list[float], q: float) -> float:
    """Return the value at quantile q of the measured values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)]


def one_at_a_time(asker: Asker, group: tuple[str, str, int], rounds: int) -> list[float]:
    """Return the seconds from request to response, one request at a time, at random moments."""
    group_id, member_id, generation = group
    waits = random.Random(7)
    took = []
    for _ in range(rounds):
        took.append(asker.ask(heartbeat_request(asker, group_id, member_id, generation))[1])
        time.sleep(waits.uniform(0, 0.2))
    return took


def burst(asker: Asker, groups: dict[str, tuple[str, int]], requests: int) -> float:
    """Return the heartbeats per second over these groups, from the first request to the last response."""
    members = list(groups.items())
    batch = [
        heartbeat_request(asker, group_id, member_id, generation)
        for i in range(requests)
        for group_id, (member_id, generation) in (members[i % len(members)],)
    ]
    began = time.perf_counter()
    for request in batch:
        asker.send_nowait(request)
    asker.flush()
    asker.wait({request.correlation_id for request in batch})
    return requests / (time.perf_counter() - began)


def deadline_lateness(asker: Asker, delay_ms: int, rounds: int, first: int = 0) -> list[float]:
    """Return by how many seconds new groups' JoinGroup responses come after the end of the initial delay."""
    waits = random.Random(11)
    late = []
    for i in range(first, first + rounds):
        request = join_request(asker, f"late-{i}", rebalance_timeout_ms=delay_ms)
        due = asker.send(request) + delay_ms / 1000
        _, here = asker.wait({request.correlation_id})[request.correlation_id]
        late.append(here - due)
        time.sleep(waits.uniform(0, 0.3))
    return late


def cpu_share(pids: Callable[[], list[int]], seconds: float) -> float:
    """Return the cores that these processes use for `seconds`, without ended children."""
    before = processor_s(pids())
    time.sleep(seconds)
    return (processor_s(pids()) - before) / seconds


def processor_s(pids: list[int]) -> float:
    """Return the processor time that these processes have used, without ended children."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S
    return total


def session_pids(session_id: int) -> list[int]:
    """Return every process of a session: the JVM and its Python workers."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session_id:
            pids.append(int(stat.parent.name))
    return pids
