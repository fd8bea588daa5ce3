"""Minutes of load through the gateway: rate, latency, and the memory of every process each half minute.

Groups form and end all the time, because heartbeats alone would not show memory that joining members leak.
"""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.load import kafka_groups
from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, run_at_rates
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
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.rows.through_gateway import connected, warm_up
from bench.systems import COORDINATOR, GATEWAY, PREFIX, RunningSystems

GROUPS = CONNECTIONS = 500
RATE = 1_500.0
SLICE_S, QUICK_SLICE_S = 30.0, 10.0
WARM_SLICES, SLICES, QUICK_SLICES = 4, 20, 8
COMING = 50
"""The number of groups that form in each slice, over connections of their own, and end after it."""
THE_GATEWAY = "gateway"
HEAP = "heap after a collection"
_COLLECTED_EACH = 4  # the heap is measured after every fourth slice, and after the last
# Within a run. A leak of 100 bytes a request is 90 MiB in ten minutes.
GROWTH_LIMITS = {DRIVER: 0.05, WORKERS: 0.05, REPLICA: 0.05, THE_GATEWAY: 0.05, JVM: 0.15, HEAP: 0.1}


@dataclass
class Slice:
    """The outcome of some seconds of load, and the memory in bytes after it, by part.

    `heap` is the heap of Spark's JVM after a garbage collection, or None if it was not measured.
    """

    outcome: LoadResult
    memory: dict[str, int]
    heap: int | None


@dataclass
class EnduranceResult:
    """All slices after the warm-up. `slice_s` is the length of one."""

    slice_s: float
    rate: float
    slices: list[Slice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure(bench: Bench) -> RowResult:
    """Keep a fixed rate for ten minutes."""
    systems = bench.new_systems(NO_DELAY_MS).running
    endured = bench.call_in_process(endure, systems, bench.plan)
    return result_of(endured)


def endure(systems: RunningSystems, plan: Plan) -> EnduranceResult:
    """Run the load."""
    return asyncio.run(_endure(systems, plan))


async def _endure(systems: RunningSystems, plan: Plan) -> EnduranceResult:
    slice_s = QUICK_SLICE_S if plan.is_quick else SLICE_S
    slices = QUICK_SLICES if plan.is_quick else SLICES
    with ExitStack() as stack:
        client = stack.enter_context(TopicsClient(systems.servers, PREFIX, packed=systems.packed))
        members = client.form_groups([f"endurance-{uuid.uuid4()}" for _ in range(GROUPS)])
        pipes = await connected(systems.ours, members, CONNECTIONS)
        for pipe in pipes:
            stack.callback(pipe.close)
        note = await warm_up(systems, pipes, 1, plan)
        endured = EnduranceResult(slice_s, RATE, notes=[note])
        for number in range(-WARM_SLICES, slices):  # those before 0 warm up
            outcome, joined = await _slice(systems, pipes, slice_s)
            client.end_groups(joined)
            memory = _memory(systems)
            heap = None
            if number >= 0 and (number % _COLLECTED_EACH == 0 or number == slices - 1):
                (jvm,) = parts_of(systems.pids[COORDINATOR])[JVM]
                heap = heap_after_collection_bytes(jvm)
            say(f"    slice {number}: {_text(Slice(outcome, memory, heap))}")
            if number >= 0:
                endured.slices.append(Slice(outcome, memory, heap))
        client.end_groups(members)
    return endured


async def _slice(
    systems: RunningSystems, pipes: Sequence[Pipe], slice_s: float
) -> tuple[LoadResult, list[Membership]]:
    """Run a slice of the load. Return its result, and the members that joined meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(run_at_rates(pipes, [(RATE, slice_s)]))
        joining = tasks.create_task(
            kafka_groups.form(systems.ours, [f"coming-{uuid.uuid4()}" for _ in range(COMING)])
        )
    return load.result(), joining.result()


def _memory(systems: RunningSystems) -> dict[str, int]:
    parts = parts_of(systems.pids[COORDINATOR]) | {THE_GATEWAY: [systems.pids[GATEWAY]]}
    return {part: memory_bytes(pids) for part, pids in parts.items()}


def _text(load_slice: Slice) -> str:
    outcome = load_slice.outcome
    memory = ", ".join(f"{part} {size / MIB:.1f}" for part, size in load_slice.memory.items())
    heap = f", heap {load_slice.heap / MIB:.1f}" if load_slice.heap is not None else ""
    latencies = f"p50 {outcome.latency_ms(0.5):.0f} ms, p99 {outcome.latency_ms(0.99):.0f} ms"
    return f"{outcome.rate:.0f}/s, {latencies}; MiB: {memory}{heap}"


def result_of(endured: EnduranceResult) -> RowResult:
    """Return the figures, the table of the slices and its pictures."""
    slices = endured.slices
    outcomes = [load_slice.outcome for load_slice in slices]
    errors = float(sum(outcome.errors.total() for outcome in outcomes))
    p50_ms, p99_ms = ([outcome.latency_ms(q) for outcome in outcomes] for q in (0.5, 0.99))
    by_part = {part: [load_slice.memory[part] / MIB for load_slice in slices] for part in slices[0].memory}
    heaps = {index: it.heap / MIB for index, it in enumerate(slices) if it.heap is not None}
    minutes = [(index + 1) * endured.slice_s / 60 for index in range(len(slices))]
    series = [Series(part, minutes, values) for part, values in by_part.items()]
    if heaps:
        series.append(Series(HEAP, [minutes[index] for index in heaps], list(heaps.values())))
    figures = [
        Figure("endurance: requests", "/s", [outcome.rate for outcome in outcomes]),
        Figure("endurance: responses with an error", "", [errors], required=at_most(0), target=at_most(0)),
        Figure("endurance: p50", "ms", p50_ms),
        Figure("endurance: p99", "ms", p99_ms),
    ]
    figures += [
        Figure(
            f"endurance, memory: {one.name}, growth", "%", [100 * growth(one.y)], required=_limit(one.name)
        )
        for one in series
    ]
    head = ["minute", "requests/s", "p50 ms", "p99 ms", *(f"{part} MiB" for part in by_part), f"{HEAP} MiB"]
    lines = [
        [
            number(minutes[index]),
            *(number(value) for value in (outcomes[index].rate, p50_ms[index], p99_ms[index])),
            *(number(values[index]) for values in by_part.values()),
            number(heaps[index]) if index in heaps else "",
        ]
        for index in range(len(slices))
    ]
    latencies = [Series("p50", minutes, p50_ms), Series("p99", minutes, p99_ms)]
    plots = [
        Plot("endurance-memory", "Memory under load", "minutes of load", "MiB", series),
        Plot("endurance-latency", "Request to response", "minutes of load", "ms", latencies),
    ]
    return RowResult(figures, plots, endured.notes, [head, *lines])


def _limit(part: str) -> Limit:
    return at_most(100 * GROWTH_LIMITS[part])
