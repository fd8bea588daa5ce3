"""The cost of resting groups: they have 3 members with sessions of 30 minutes, which send nothing."""

import random
import time
import uuid
from dataclasses import dataclass

from bench.load.requests import SESSION_TIMEOUT_MS, heartbeat_request
from bench.load.topics import Record, TopicsClient
from bench.memory import MIB
from bench.report import Figure, at_most, say
from bench.rows.bench import DEFAULT_DELAY_MS, Bench, Plan, RowResult
from bench.stats import WarmUp, percentile
from bench.systems import COORDINATOR, ON_TOPICS, PREFIX, RunningSystems

GROUPS, QUICK_GROUPS = 100_000, 5_000
MEMBERS = 3
_AT_ONCE = 20_000  # groups that form together
_PAUSE_MAX_S = 0.2
_MAINTENANCE_S = 75.0  # Spark removes old versions of the state every 60 s


@dataclass
class Cost:
    """The durations of batches and of single requests, the coordinator's memory, the size of its state."""

    batch_ms: list[float]
    latency_ms: list[float]
    memory_bytes: int
    state_bytes: int


def measure(bench: Bench) -> RowResult:
    """Compare single heartbeats before and after the groups exist."""
    systems, plan = bench.new_systems(DEFAULT_DELAY_MS).running, bench.plan
    groups = QUICK_GROUPS if plan.is_quick else GROUPS
    before, after, took_s = bench.call_in_process(compare, systems, plan, groups)
    what = f"{groups:,} resting groups of {MEMBERS}"
    before_ms, after_ms = (percentile(cost.batch_ms, 0.5) for cost in (before, after))
    before_latency_ms, after_latency_ms = (percentile(cost.latency_ms, 0.5) for cost in (before, after))
    added_bytes = after.state_bytes - before.state_bytes
    required, target = at_most(50), at_most(10)
    row = RowResult(notes=[f"{groups:,} groups of {MEMBERS} members were formed in {took_s:.0f} s."])
    row.figures = [
        Figure(
            f"{what}: added to a batch, p50", "ms", [after_ms - before_ms], required=required, target=target
        ),
        Figure(f"{what}: a batch, p50", "ms", [after_ms], [before_ms], "before"),
        Figure(f"{what}: request to response, p50", "ms", [after_latency_ms], [before_latency_ms], "before"),
        Figure(
            f"{what}: state on disk", "MiB", [after.state_bytes / MIB], [before.state_bytes / MIB], "before"
        ),
        Figure(f"{what}: state on disk for each group", "B", [added_bytes / groups]),
        Figure(f"{what}: memory", "MiB", [after.memory_bytes / MIB], [before.memory_bytes / MIB], "before"),
        Figure(f"{what}: formed", "groups/s", [groups / took_s]),
    ]
    return row


def compare(systems: RunningSystems, plan: Plan, groups: int) -> tuple[Cost, Cost, float]:
    """Return the cost before and after, and the seconds in which the groups formed."""
    with TopicsClient(systems.servers, PREFIX, packed=systems.packed) as client, systems.run_only(ON_TOPICS):
        (member,) = client.form_groups([f"working-{uuid.uuid4()}"])
        (record,) = client.records([heartbeat_request(member)], packed=False)
        before = _cost(systems, plan, client, record)
        began_s = time.monotonic()
        for first in range(0, groups, _AT_ONCE):
            group_ids = [f"resting-{uuid.uuid4()}" for _ in range(min(_AT_ONCE, groups - first))]
            client.form_groups(group_ids, MEMBERS, session_timeout_ms=SESSION_TIMEOUT_MS)
            say(f"    {first + len(group_ids):,} groups after {time.monotonic() - began_s:.0f} s")
        took_s = time.monotonic() - began_s
        time.sleep(0 if plan.is_quick else _MAINTENANCE_S)
        return before, _cost(systems, plan, client, record), took_s


def _cost(systems: RunningSystems, plan: Plan, client: TopicsClient, record: Record) -> Cost:
    """Measure single requests at random moments, and the batches meanwhile."""
    waits = random.Random(7)
    warm_up = WarmUp(plan.warm_up_s)
    while warm_up.should_continue:
        warm_up.add(percentile([_time_one(client, record, waits) for _ in range(10)], 0.5))
    first = systems.last_batch()
    latency_ms = [_time_one(client, record, waits) * 1e3 for _ in range(plan.single_requests)]
    memory_bytes = systems.memory_bytes(COORDINATOR)
    return Cost(systems.batch_ms(first), latency_ms, memory_bytes, systems.state_bytes())


def _time_one(client: TopicsClient, record: Record, waits: random.Random) -> float:
    """Wait a random time, send a request, and return the seconds until its response."""
    time.sleep(waits.uniform(0, _PAUSE_MAX_S))
    return client.time_one(record)
