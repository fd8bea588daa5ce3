"""The latency and the processor time of a request below the capacity, and where slow answers lose time.

All loads are open loops. Through the gateway, each connection has a group of its own, and Kafka's coordinator
gets the same load in turn. On the topics, a closed loop finds the capacity in each turn.
"""

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median

from msgspec import structs

from bench.load.load_result import LoadResult
from bench.load.pipes import run_at_rates
from bench.load.requests import heartbeat_request
from bench.load.topics import TopicsClient
from bench.memory import DRIVER, JVM, REPLICA, WORKERS, parts_of
from bench.report import Figure, at_most, number, ratio_at_most, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult, errors_figure
from bench.rows.mixed import ROUND, UNDER_WAY, rounds
from bench.rows.through_gateway import connected_to_both, warm_up
from bench.slow_answers import LoadLog, Stages, slow_note
from bench.stats import WarmUp
from bench.systems import (
    BEHIND_GATEWAY,
    COORDINATOR,
    GATEWAY,
    KAFKAS_OWN,
    ON_TOPICS,
    PREFIX,
    RunningSystems,
    own_cpu_s,
)

CONNECTIONS = (20, 1_000)
RATES = (300, 1_500)
GROUPS = (20, 1_000, 20_000)
FRACTIONS = (0.25, 0.5, 0.75)  # of the capacity on the topics
SETTLE_S = 1.0
"""The same load runs this long before each measurement."""
BROKER = "broker"
PARTS = (GATEWAY, BROKER, REPLICA, WORKERS, JVM, DRIVER)

_LIMITED = (20, 1_500)  # connections and requests a second
_QUANTILES = {50: (3, 2), 90: (5, 3), 99: (8, 5)}
"""By percentile: what is required of the ratio to Kafka's latency for the load _LIMITED, and the target."""


@dataclass
class PartialLoad:
    """The results of a load, one value per turn."""

    ours: list[LoadResult] = field(default_factory=list)
    kafkas: list[LoadResult] = field(default_factory=list)
    slow: list[Stages] = field(default_factory=list)  # the slow answers of all turns
    cpu_us: list[dict[str, float]] = field(default_factory=list)  # of a request, by part
    kafkas_cpu_us: list[float] = field(default_factory=list)

    def slow_note(self) -> str:
        return slow_note(sum(outcome.responses for outcome in self.ours), self.slow)


def measure(bench: Bench) -> RowResult:
    """Measure through the gateway, then on the topics."""
    systems = bench.systems(NO_DELAY_MS).running
    row = RowResult(table=[["processor time a request, µs", *PARTS, "Kafka's own: broker"]])
    for connections in CONNECTIONS:
        say(f"  {connections:,} connections")
        loads = bench.call_in_process(through_gateway, systems, bench.plan, connections)
        for rate, load in loads.items():
            _add_gateway(row, connections, rate, load)
    for groups in GROUPS:
        say(f"  {groups:,} groups on the topics")
        fractions = bench.call_in_process(on_topics, systems, bench.plan, groups)
        for fraction, load in fractions.items():
            _add_topics(row, groups, fraction, load)
    return row


def _add_gateway(row: RowResult, connections: int, rate: int, load: PartialLoad) -> None:
    what = f"open loop, {connections:,} connections, {rate:,}/s"
    is_limited = (connections, rate) == _LIMITED
    for percent, limits in _QUANTILES.items():
        ours, kafkas = ([o.latency_ms(percent / 100) for o in side] for side in (load.ours, load.kafkas))
        required, target = map(ratio_at_most, limits) if is_limited else (None, None)
        row.figures.append(Figure(f"{what}: p{percent}", "ms", ours, kafkas, "Kafka's own", required, target))
    required, target = (at_most(500), at_most(250)) if is_limited else (None, None)
    cpu_us = [sum(by_part.values()) for by_part in load.cpu_us]
    row.figures += [
        Figure(
            f"{what}: processor time a request, without the client's", "µs", cpu_us, load.kafkas_cpu_us,
            "Kafka's own", required, target,
        ),
        errors_figure(what, [outcome.errors.total() for outcome in load.ours]),
    ]  # fmt: skip
    by_part = [median(turn[part] for turn in load.cpu_us) for part in PARTS]
    row.table.append([what, *map(number, (*by_part, median(load.kafkas_cpu_us)))])
    row.notes.append(f"{what}: {load.slow_note()}")


def _add_topics(row: RowResult, groups: int, fraction: float, load: PartialLoad) -> None:
    what = f"open loop on the topics, {groups:,} groups, {fraction:.0%} of the capacity"
    p50, p99 = ([outcome.latency_ms(q) for outcome in load.ours] for q in (0.5, 0.99))
    ratios = [high / middle for middle, high in zip(p50, p99, strict=True)]
    is_limited = (groups, fraction) == (1_000, 0.5)
    required, target = (at_most(8), at_most(4)) if is_limited else (None, None)
    row.figures += [
        Figure(what, "/s", [outcome.rate for outcome in load.ours]),
        Figure(f"{what}: p50", "ms", p50),
        Figure(f"{what}: p99", "ms", p99),
        Figure(f"{what}: p99 as a multiple of p50", "x", ratios, required=required, target=target),
        errors_figure(what, [outcome.errors.total() for outcome in load.ours]),
    ]
    row.notes.append(f"{what}: {load.slow_note()}")


def through_gateway(systems: RunningSystems, plan: Plan, connections: int) -> Mapping[int, PartialLoad]:
    """Return the results by rate."""
    return asyncio.run(_through_gateway(systems, plan, connections))


async def _through_gateway(
    systems: RunningSystems, plan: Plan, connections: int
) -> Mapping[int, PartialLoad]:
    pipe_of = {f"partial-{uuid.uuid4()}": index for index in range(connections)}
    loads = {rate: PartialLoad() for rate in RATES}
    with closing(LoadLog(systems.servers, PREFIX)) as log:
        async with connected_to_both(systems, list(pipe_of), connections) as (ours_pipes, kafkas_pipes):
            say(f"    {await warm_up(systems, ours_pipes, 1, plan)}")
            for turn in range(plan.repeats):
                say(f"    turn {turn + 1} of {plan.repeats}")
                with systems.run_only(BEHIND_GATEWAY):
                    for rate, load in loads.items():
                        await run_at_rates(ours_pipes, [(rate, SETTLE_S)])
                        before_us = _cpu_us(systems)
                        log.begin()
                        outcome = await run_at_rates(ours_pipes, [(rate, plan.load_s)])
                        load.cpu_us.append(_a_request(before_us, _cpu_us(systems), outcome))
                        load.ours.append(outcome)
                        load.slow += log.slow_answers(outcome, pipe_of)
                with systems.run_only(KAFKAS_OWN):
                    for rate, load in loads.items():
                        await run_at_rates(kafkas_pipes, [(rate, SETTLE_S)])
                        before_us = _cpu_us(systems)
                        outcome = await run_at_rates(kafkas_pipes, [(rate, plan.load_s)])
                        load.kafkas_cpu_us.append(_a_request(before_us, _cpu_us(systems), outcome)[BROKER])
                        load.kafkas.append(outcome)
    return loads


def _cpu_us(systems: RunningSystems) -> dict[str, float]:
    """Return the processor time so far, by part."""
    pids = {GATEWAY: [systems.pids[GATEWAY]], BROKER: [systems.broker_pid]}
    pids |= parts_of(systems.pids[COORDINATOR])
    return {part: 1e6 * sum(map(own_cpu_s, pids[part])) for part in PARTS}


def _a_request(
    before_us: Mapping[str, float], after_us: Mapping[str, float], outcome: LoadResult
) -> dict[str, float]:
    return {part: (after_us[part] - before_us[part]) / outcome.responses for part in PARTS}


def on_topics(systems: RunningSystems, plan: Plan, groups: int) -> Mapping[float, PartialLoad]:
    """Return the results by the fraction of the capacity."""
    pipe_of = dict.fromkeys((f"partial-{uuid.uuid4()}" for _ in range(groups)), 0)  # one client sends all
    loads = {fraction: PartialLoad() for fraction in FRACTIONS}
    with (
        closing(LoadLog(systems.servers, PREFIX)) as log,
        TopicsClient(systems.servers, PREFIX, packed=systems.packed) as client,
        systems.run_only(ON_TOPICS),
    ):
        members = client.form_groups(list(pipe_of))
        records = rounds(client, members, max(2 * groups, ROUND))
        query_only = structs.replace(heartbeat_request(members[0]), waits_for_views=True)
        warm_up_rates = WarmUp(plan.warm_up_s / 2)
        while warm_up_rates.should_continue:
            warm_up_rates.add(client.run_closed_loop(cycle(records), UNDER_WAY, plan.load_s).rate)
        for turn in range(turns := plan.repeats // 2):  # many more requests than through the gateway
            say(f"    turn {turn + 1} of {turns}")
            capacity = client.run_closed_loop(cycle(records), UNDER_WAY, plan.load_s).rate
            for fraction, load in loads.items():
                client.ask([query_only])  # answered when the query has handled everything before it
                client.run_at_rate(cycle(records), capacity * fraction, SETTLE_S)
                log.begin()
                outcome = client.run_at_rate(cycle(records), capacity * fraction, plan.load_s)
                load.ours.append(outcome)
                load.slow += log.slow_answers(outcome, pipe_of)
        client.end_groups(members)
    return loads
