"""The cost of groups that rest: groups of 3 members with sessions of 30 minutes, which send nothing."""

import random
import time
import uuid
from dataclasses import dataclass

from bench.load.requests import SESSION_TIMEOUT_MS, heartbeat_request
from bench.load.topics import Record, TopicsClient
from bench.memory import MIB
from bench.report import Figure, at_most, say
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found, Plan
from bench.stats import WarmUp, percentile
from bench.systems import COORDINATOR, ON_TOPICS, PREFIX, RunningSystems

GROUPS, QUICK_GROUPS = 100_000, 5_000
MEMBERS = 3
_AT_ONCE = 20_000
_PAUSE_MAX_S = 0.2
_MAINTENANCE_S = 75.0  # Spark removes old versions of the state every 60 s


@dataclass
class Cost:
    """The durations of batches and of single requests, the coordinator's memory, the size of its state."""

    batch_ms: list[float]
    latency_ms: list[float]
    memory_bytes: int
    state_bytes: int


def measure(bench: Bench) -> Found:
    """Compare single heartbeats before and after the groups exist."""
    world, plan = bench.new_systems(KAFKAS_DELAY_MS).world, bench.plan
    groups = QUICK_GROUPS if plan.is_quick else GROUPS
    before, after, took_s = bench.load(compare, world, plan, groups)
    what = f"{groups:,} resting groups of {MEMBERS}"
    before_ms, after_ms = (percentile(cost.batch_ms, 0.5) for cost in (before, after))
    had_ms, has_ms = (percentile(cost.latency_ms, 0.5) for cost in (before, after))
    had, has = before.state_bytes, after.state_bytes
    line, goal = at_most(50), at_most(10)
    found = Found(notes=[f"{groups:,} groups of {MEMBERS} members were formed in {took_s:.0f} s."])
    found.figures = [
        Figure(f"{what}: added to a batch, p50", "ms", [after_ms - before_ms], (), "", line, goal),
        Figure(f"{what}: a batch, p50", "ms", [after_ms], [before_ms], "before"),
        Figure(f"{what}: request to response, p50", "ms", [has_ms], [had_ms], "before"),
        Figure(f"{what}: state on disk", "MiB", [has / MIB], [had / MIB], "before"),
        Figure(f"{what}: state on disk for each group", "B", [(has - had) / groups]),
        Figure(f"{what}: memory", "MiB", [after.memory_bytes / MIB], [before.memory_bytes / MIB], "before"),
        Figure(f"{what}: formed", "groups/s", [groups / took_s]),
    ]
    return found


def compare(world: RunningSystems, plan: Plan, groups: int) -> tuple[Cost, Cost, float]:
    """Return the cost before and after, and the seconds in which the groups formed."""
    with TopicsClient(world.servers, PREFIX, packed=world.packed) as client, world.alone(ON_TOPICS):
        (member,) = client.form([f"working-{uuid.uuid4()}"])
        (record,) = client.records([heartbeat_request(member)], packed=False)
        before = _cost(world, plan, client, record)
        began_s = time.monotonic()
        for first in range(0, groups, _AT_ONCE):
            some = [f"resting-{uuid.uuid4()}" for _ in range(min(_AT_ONCE, groups - first))]
            client.form(some, MEMBERS, session_timeout_ms=SESSION_TIMEOUT_MS)
            say(f"    {first + len(some):,} groups after {time.monotonic() - began_s:.0f} s")
        took_s = time.monotonic() - began_s
        time.sleep(0 if plan.is_quick else _MAINTENANCE_S)
        return before, _cost(world, plan, client, record), took_s


def _cost(world: RunningSystems, plan: Plan, client: TopicsClient, record: Record) -> Cost:
    """Send single requests at random moments, and look at the batches meanwhile."""
    waits = random.Random(7)
    warm_up = WarmUp(plan.warm_up_s)
    while warm_up.goes_on:
        warm_up.add(percentile([_one(client, record, waits) for _ in range(10)], 0.5))
    first = world.last_batch()
    latency_ms = [_one(client, record, waits) * 1e3 for _ in range(plan.singles)]
    memory_bytes = world.memory_bytes(COORDINATOR)
    return Cost(world.batch_ms(first), latency_ms, memory_bytes, world.state_bytes())


def _one(client: TopicsClient, record: Record, waits: random.Random) -> float:
    time.sleep(waits.uniform(0, _PAUSE_MAX_S))
    return client.one(record)
