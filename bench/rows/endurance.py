"""Minutes of load through the gateway: rate, latency, and the memory of every process at each half minute.

Groups come and go all the while, because what grows with the number of members there ever were does not grow
under heartbeats.
"""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.load import kafka_groups
from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, at_rates
from bench.load.requests import Membership
from bench.load.topics import TopicsClient
from bench.memory import (
    DRIVER,
    JVM,
    MIB,
    REPLICA,
    WORKERS,
    growth,
    heap_after_collection_bytes,
    memory_bytes,
    parts_of,
)
from bench.report import Figure, Limit, Plot, Series, at_most, number, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.rows.through_gateway import connected, warm_up
from bench.systems import COORDINATOR, GATEWAY, PREFIX, RunningSystems

GROUPS = CONNECTIONS = 500
RATE = 1_500.0
SLICE_S, QUICK_SLICE_S = 30.0, 10.0
WARM_SLICES, SLICES, QUICK_SLICES = 4, 20, 8
COMING = 50
"""So many groups of one member form in each slice, through connections of their own, and end after it."""
THE_GATEWAY = "gateway"
HEAP = "heap after a collection"
_COLLECTED_EACH = 4
# Within a run. A leak of 100 bytes a request is 90 MiB in ten minutes.
GROWTH_LIMITS = {DRIVER: 0.05, WORKERS: 0.05, REPLICA: 0.05, THE_GATEWAY: 0.05, JVM: 0.15, HEAP: 0.1}


@dataclass
class Slice:
    """The load of some seconds, and the memory in bytes after it, by part."""

    outcome: LoadResult
    memory: dict[str, int]
    heap: int | None


@dataclass
class Endured:
    """All slices after the warm-up. `slice_s` is the length of one."""

    slice_s: float
    rate: float
    slices: list[Slice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure(bench: Bench) -> Found:
    """Keep a fixed rate for ten minutes."""
    world = bench.new_systems(AT_ONCE_MS).world
    endured = bench.load(endure, world, bench.plan)
    return found_of(endured)


def endure(world: RunningSystems, plan: Plan) -> Endured:
    """Run the load."""
    return asyncio.run(_endure(world, plan))


async def _endure(world: RunningSystems, plan: Plan) -> Endured:
    slice_s = QUICK_SLICE_S if plan.is_quick else SLICE_S
    slices = QUICK_SLICES if plan.is_quick else SLICES
    with ExitStack() as stack:
        client = stack.enter_context(TopicsClient(world.servers, PREFIX, packed=world.packed))
        members = client.form([f"endurance-{uuid.uuid4()}" for _ in range(GROUPS)])
        pipes = await connected(world.ours, members, CONNECTIONS)
        for pipe in pipes:
            stack.callback(pipe.close)
        note = await warm_up(world, pipes, 1, plan)
        endured = Endured(slice_s, RATE, notes=[note])
        for number in range(-WARM_SLICES, slices):
            outcome, came = await _slice(world, pipes, slice_s)
            client.end(came)
            memory = _memory(world)
            heap = None
            if number >= 0 and (number % _COLLECTED_EACH == 0 or number == slices - 1):
                (jvm,) = parts_of(world.pids[COORDINATOR])[JVM]
                heap = heap_after_collection_bytes(jvm)
            say(f"    slice {number}: {_text(Slice(outcome, memory, heap))}")
            if number >= 0:
                endured.slices.append(Slice(outcome, memory, heap))
        client.end(members)
    return endured


async def _slice(
    world: RunningSystems, pipes: Sequence[Pipe], slice_s: float
) -> tuple[LoadResult, list[Membership]]:
    """Return a slice of the load. Also return the members that came meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(at_rates(pipes, [(RATE, slice_s)]))
        coming = tasks.create_task(
            kafka_groups.form(world.ours, [f"coming-{uuid.uuid4()}" for _ in range(COMING)])
        )
    return load.result(), coming.result()


def _memory(world: RunningSystems) -> dict[str, int]:
    parts = parts_of(world.pids[COORDINATOR]) | {THE_GATEWAY: [world.pids[GATEWAY]]}
    return {part: memory_bytes(pids) for part, pids in parts.items()}


def _text(one: Slice) -> str:
    outcome = one.outcome
    memory = ", ".join(f"{part} {size / MIB:.1f}" for part, size in one.memory.items())
    heap = f", heap {one.heap / MIB:.1f}" if one.heap is not None else ""
    latencies = f"p50 {outcome.latency_ms(0.5):.0f} ms, p99 {outcome.latency_ms(0.99):.0f} ms"
    return f"{outcome.rate:.0f}/s, {latencies}; MiB: {memory}{heap}"


def found_of(endured: Endured) -> Found:
    """Return the figures, the table of the slices and its pictures."""
    slices = endured.slices
    outcomes = [one.outcome for one in slices]
    none = at_most(0)
    errors = float(sum(outcome.errors.total() for outcome in outcomes))
    p50_ms, p99_ms = ([outcome.latency_ms(q) for outcome in outcomes] for q in (0.5, 0.99))
    by_part = {part: [one.memory[part] / MIB for one in slices] for part in slices[0].memory}
    heaps = {place: one.heap / MIB for place, one in enumerate(slices) if one.heap is not None}
    minutes = [(place + 1) * endured.slice_s / 60 for place in range(len(slices))]
    series = [Series(part, minutes, values) for part, values in by_part.items()]
    if heaps:
        series.append(Series(HEAP, [minutes[place] for place in heaps], list(heaps.values())))
    figures = [
        Figure("endurance: requests", "/s", [outcome.rate for outcome in outcomes]),
        Figure("endurance: responses with an error", "", [errors], (), "", none, none),
        Figure("endurance: p50", "ms", p50_ms),
        Figure("endurance: p99", "ms", p99_ms),
    ]
    figures += [
        Figure(f"endurance, memory: {one.name}, growth", "%", [100 * growth(one.y)], (), "", _limit(one.name))
        for one in series
    ]
    head = ["minute", "requests/s", "p50 ms", "p99 ms", *(f"{part} MiB" for part in by_part), f"{HEAP} MiB"]
    lines = [
        [
            number(minutes[place]),
            *(number(value) for value in (outcomes[place].rate, p50_ms[place], p99_ms[place])),
            *(number(values[place]) for values in by_part.values()),
            number(heaps[place]) if place in heaps else "",
        ]
        for place in range(len(slices))
    ]
    latencies = [Series("p50", minutes, p50_ms), Series("p99", minutes, p99_ms)]
    plots = [
        Plot("endurance-memory", "Memory under load", "minutes of load", "MiB", series),
        Plot("endurance-latency", "Request to response", "minutes of load", "ms", latencies),
    ]
    return Found(figures, plots, endured.notes, [head, *lines])


def _limit(part: str) -> Limit:
    return at_most(100 * GROWTH_LIMITS[part])
