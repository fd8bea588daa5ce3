"""Two gateways with half of the connections each, beside one gateway with all of them.

All processes and the load share the cores of one machine, so the rates do not add up. The processor time of
a request by process shows what each gateway takes, and what all gateways share.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, run_at_rates, run_closed_loop
from bench.load.requests import Membership
from bench.load.topics import TopicsClient
from bench.memory import DRIVER, JVM, REPLICA, WORKERS, parts_of
from bench.report import Figure, number, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult, client_figure, errors_figure
from bench.rows.through_gateway import connected, warm_up
from bench.systems import (
    BEHIND_GATEWAY,
    COORDINATOR,
    GATEWAY,
    ON_TOPICS,
    PREFIX,
    SECOND_GATEWAY,
    RunningSystems,
    cpu_s,
    own_cpu_s,
)
from kafka_why.connections.address import Address

GROUPS = CONNECTIONS = 1_000
RATE = 1_500.0
_FIRST, _SECOND, _BROKER, _CLIENT = "first gateway", "second gateway", "broker", "load client"
_SHARED = (_BROKER, REPLICA, WORKERS, JVM, DRIVER)
_ONE, _TWO = "one gateway", "two gateways"

Load = Callable[[Sequence[Pipe], float], Awaitable[LoadResult]]
"""Loads the connections for some seconds."""
_LOADS: Mapping[str, Load] = MappingProxyType(
    {
        "1 under way each": lambda pipes, seconds: run_closed_loop(pipes, 1, seconds),
        "8 under way each": lambda pipes, seconds: run_closed_loop(pipes, 8, seconds),
        f"{RATE:,.0f}/s": lambda pipes, seconds: run_at_rates(pipes, [(RATE, seconds)]),
    }
)


@dataclass(frozen=True)
class CountedLoad:
    """The responses to one load, and the processor time that each took, in microseconds by process."""

    outcome: LoadResult
    cpu_us: Mapping[str, float]


Turns = dict[tuple[str, str], list[CountedLoad]]
"""The turns by load, and by _ONE or _TWO gateways."""


def measure(bench: Bench) -> RowResult:
    """Measure each load with one gateway and with two, by turns."""
    processes = bench.systems(NO_DELAY_MS)
    with processes.second_gateway() as second:
        turns, note = bench.call_in_process(alternate, processes.running, second, bench.plan)
    figures = [figure for load in _LOADS for figure in _figures(load, turns[load, _ONE], turns[load, _TWO])]
    return RowResult(figures, notes=[note], table=_table(turns))


def alternate(systems: RunningSystems, second: Address, plan: Plan) -> tuple[Turns, str]:
    """Return the turns, and a note about the warm-up."""
    return asyncio.run(_alternate(systems, second, plan))


async def _alternate(systems: RunningSystems, second: Address, plan: Plan) -> tuple[Turns, str]:
    turns: Turns = defaultdict(list)
    behind_both = (*BEHIND_GATEWAY, SECOND_GATEWAY)
    with ExitStack() as stack:
        client = stack.enter_context(TopicsClient(systems.servers, PREFIX, packed=systems.packed))
        with systems.run_only(ON_TOPICS):
            members = client.form_groups([f"gateways-{uuid.uuid4()}" for _ in range(GROUPS)])
        one = await connected(systems.ours, members, CONNECTIONS)
        two = await _connected_to_both(systems, second, members)
        for pipe in (*one, *two):
            stack.callback(pipe.close)
        note = await warm_up(systems, one, 8, plan)
        with systems.run_only(behind_both):
            await run_closed_loop(two, 8, plan.load_s)
        for name, load in _LOADS.items():
            for turn in range(plan.repeats):
                say(f"    {name}, turn {turn + 1} of {plan.repeats}")
                with systems.run_only(BEHIND_GATEWAY):
                    turns[name, _ONE].append(await _counted(systems, load(one, plan.load_s)))
                with systems.run_only(behind_both):
                    turns[name, _TWO].append(await _counted(systems, load(two, plan.load_s)))
        client.end_groups(members)
    return turns, note


async def _connected_to_both(
    systems: RunningSystems, second: Address, members: Sequence[Membership]
) -> list[Pipe]:
    """Connect half of the members to each gateway. The connections of the two alternate."""
    firsts = await connected(systems.ours, members[::2], CONNECTIONS // 2)
    seconds = await connected(second, members[1::2], CONNECTIONS // 2)
    return [pipe for pair in zip(firsts, seconds, strict=True) for pipe in pair]


async def _counted(systems: RunningSystems, load: Awaitable[LoadResult]) -> CountedLoad:
    """Run a load, and count the processor time of all processes meanwhile."""
    before_s = _cpu_s(systems)
    outcome = await load
    used_s = {part: after_s - before_s[part] for part, after_s in _cpu_s(systems).items()}
    used_s[_CLIENT] = outcome.client_cores * outcome.took_s
    return CountedLoad(outcome, {part: s / outcome.responses * 1e6 for part, s in used_s.items()})


def _cpu_s(systems: RunningSystems) -> dict[str, float]:
    """Return the processor time of each process so far."""
    parts = parts_of(systems.pids[COORDINATOR])
    return {
        _FIRST: cpu_s(systems.pids[GATEWAY]),
        _SECOND: cpu_s(systems.pids[SECOND_GATEWAY]),
        _BROKER: cpu_s(systems.broker_pid),
        **{part: sum(own_cpu_s(pid) for pid in parts[part]) for part in (REPLICA, WORKERS, JVM, DRIVER)},
    }


def _figures(load: str, one: Sequence[CountedLoad], two: Sequence[CountedLoad]) -> Iterator[Figure]:
    what = f"{_TWO}, {load}"
    ours, others = ([turn.outcome for turn in side] for side in (two, one))
    yield Figure(what, "/s", [outcome.rate for outcome in ours], [outcome.rate for outcome in others], _ONE)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        ours_ms, others_ms = ([outcome.latency_ms(q) for outcome in side] for side in (ours, others))
        yield Figure(f"{what}: {name}", "ms", ours_ms, others_ms, _ONE)
    yield errors_figure(what, [outcome.errors.total() for outcome in (*ours, *others)])
    yield client_figure(what, ours, others, _ONE)


def _table(turns: Turns) -> list[list[str]]:
    """Return a table with a column for each load and number of gateways."""
    columns = [_column(of_load) for of_load in turns.values()]
    lines = [[name, *(number(column[name]) for column in columns)] for name in columns[0]]
    return [["", *(", ".join(key) for key in turns)], *lines]


def _column(turns: Sequence[CountedLoad]) -> dict[str, float]:
    """Return the medians of the turns, by the name of the table's line."""
    outcomes = [turn.outcome for turn in turns]
    cpu_us = {part: median(turn.cpu_us[part] for turn in turns) for part in turns[0].cpu_us}
    return {
        "requests/s": median(outcome.rate for outcome in outcomes),
        "p50 ms": median(outcome.latency_ms(0.5) for outcome in outcomes),
        "p99 ms": median(outcome.latency_ms(0.99) for outcome in outcomes),
        **{f"{part}: µs a request": us for part, us in cpu_us.items()},
        "requests/s on a core of the gateways": 1e6 / (cpu_us[_FIRST] + cpu_us[_SECOND]),
        "requests/s on a core of broker and coordinator": 1e6 / sum(cpu_us[part] for part in _SHARED),
    }
