"""Heartbeats and commits of many groups, beside Kafka's coordinator with the same requests.

On the topics the requests of a slot are packed into one record, as the gateway and the client do. The client
keeps UNDER_WAY requests in flight. Kafka's coordinator gets the same requests on 1 and on 8 connections, with
DEPTH in flight on each.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle

from bench.load import frames, kafka_groups
from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, run_closed_loop
from bench.load.requests import Membership, is_commit, members_for, mixed_requests
from bench.load.topics import Record, TopicsClient
from bench.report import Figure, Limit, ratio_at_least, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult, client_figure, errors_figure
from bench.stats import WarmUp, percentile
from bench.systems import KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems

GROUPS = (20, 1_000, 20_000)
CONNECTIONS = (1, 8)
UNDER_WAY = 10_000  # requests in flight on the topics
ROUND = 5_000  # requests that are packed together
DEPTH = 500  # requests in flight on each connection to Kafka's coordinator
_REQUIRED_RATIOS = {20: 1.0, 1_000: 0.7, 20_000: 0.5}
_TARGET_RATIOS = {20: 1.5, 1_000: 1.0, 20_000: 1.0}


@dataclass
class MixedResult:
    """The results for one number of groups, one per turn."""

    ours: list[LoadResult] = field(default_factory=list)
    at_half: list[LoadResult] = field(default_factory=list)
    """In an open loop, at half the rate of the closed loop of that turn."""
    singles: list[LoadResult] = field(default_factory=list)  # with each request in a record of its own
    kafkas: dict[int, list[LoadResult]] = field(default_factory=dict)  # by number of connections
    state_bytes_a_request: list[float] = field(default_factory=list)
    state_bytes_a_batch: list[float] = field(default_factory=list)
    request_bytes: float = 0.0  # the mean size of a request in a record
    notes: list[str] = field(default_factory=list)


def measure(bench: Bench) -> RowResult:
    """Measure the systems alternately, for each number of groups."""
    systems = bench.systems(NO_DELAY_MS).running
    row = RowResult()
    for groups in GROUPS:
        say(f"  groups: {groups:,}")
        result = bench.call_in_process(alternate, systems, bench.plan, groups)
        row.notes += [f"{groups:,} groups: {note}" for note in result.notes]
        row.figures += _figures(groups, result)
    return row


def _figures(groups: int, result: MixedResult) -> list[Figure]:
    what = f"{groups:,} groups on the topics"
    ours = [outcome.rate for outcome in result.ours]
    required, target = ratio_at_least(_REQUIRED_RATIOS[groups]), ratio_at_least(_TARGET_RATIOS[groups])
    figures = [
        _rate(what, ours, result.kafkas[connections], connections, required, target)
        for connections in CONNECTIONS
    ]
    figures += [
        Figure(f"{what}, {loop}: p{q}", "ms", [outcome.latency_ms(q / 100) for outcome in outcomes])
        for loop, outcomes in (("closed loop", result.ours), ("half of that rate", result.at_half))
        for q in (50, 99)
    ]
    most_connections = CONNECTIONS[-1]
    figures += [
        errors_figure(what, [outcome.errors.total() for outcome in result.ours]),
        client_figure(
            what, result.ours, result.kafkas[most_connections], f"Kafka's own, {most_connections} connections"
        ),
    ]
    if result.state_bytes_a_batch:
        written, reference_name = result.state_bytes_a_request, "bytes of the request"
        figures += [
            Figure(
                f"{what}: bytes of state written a request",
                "B",
                written,
                [result.request_bytes],
                reference_name,
            ),
            Figure(f"{what}: bytes of state written a batch", "B", result.state_bytes_a_batch),
        ]
    if result.singles:
        singles = [outcome.rate for outcome in result.singles]
        figures.append(Figure(f"{what}, a record a request", "/s", singles, ours, "packed"))
    return figures


def _rate(
    what: str,
    ours: Sequence[float],
    kafkas: Sequence[LoadResult],
    connections: int,
    required: Limit,
    target: Limit,
) -> Figure:
    plural = "s" if connections > 1 else ""
    kafkas_rates = [outcome.rate for outcome in kafkas]
    return Figure(
        what, "/s", ours, kafkas_rates, f"Kafka's own, {connections} connection{plural}", required, target
    )


def alternate(systems: RunningSystems, plan: Plan, groups: int) -> MixedResult:
    """Form the groups on both sides, warm up, and measure by turns."""
    return asyncio.run(_alternate(systems, plan, groups))


async def _alternate(systems: RunningSystems, plan: Plan, groups: int) -> MixedResult:
    group_ids = [f"mixed-{uuid.uuid4()}" for _ in range(groups)]
    number = max(2 * groups, ROUND)
    result = MixedResult(kafkas={connections: [] for connections in CONNECTIONS})
    async with AsyncExitStack() as stack:
        client = stack.enter_context(TopicsClient(systems.servers, PREFIX, packed=systems.packed))
        with systems.run_only(ON_TOPICS):
            began_s = time.perf_counter()
            members = client.form_groups(group_ids)
            took_s = time.perf_counter() - began_s
        result.notes.append(f"formed on the topics in {took_s:.1f} s")
        say(f"    {result.notes[-1]}")
        records = rounds(client, members, number)
        result.request_bytes = sum(len(record.value) for record in records) / number
        pipes = {}
        with systems.run_only(KAFKAS_OWN):
            kafkas_members = await kafka_groups.form(systems.kafkas, group_ids)
            for connections in CONNECTIONS:
                pipes[connections] = await kafkas_pipes(systems, kafkas_members, number, connections)
                for pipe in pipes[connections]:
                    stack.callback(pipe.close)
        say("    formed at Kafka's own coordinator")
        with systems.run_only(ON_TOPICS):
            warm_up = WarmUp(plan.warm_up_s)
            while warm_up.should_continue:
                warm_up.add(client.run_closed_loop(cycle(records), UNDER_WAY, plan.load_s).rate)
            result.notes.append(warm_up.note)
        for turn in range(plan.repeats + 1):  # the first is Kafka's warm-up
            say(f"    turn {turn} of {plan.repeats}" if turn else "    warming up Kafka's own")
            if turn:
                with systems.run_only(ON_TOPICS):
                    _measure_packed_turn(systems, client, records, plan, result)
            for connections in CONNECTIONS:
                with systems.run_only(KAFKAS_OWN):
                    outcome = await run_closed_loop(pipes[connections], DEPTH, plan.load_s)
                if turn:
                    result.kafkas[connections].append(outcome)
        if groups == GROUPS[1] and systems.packed:
            _measure_single_records(systems, plan, members, number, result)
        client.end_groups(members)
    return result


def rounds(client: TopicsClient, members: Sequence[Membership], number: int) -> list[Record]:
    """Return the requests of a load as records. Each ROUND requests are packed together."""
    requests = mixed_requests(members, number)
    parts = (requests[first : first + ROUND] for first in range(0, number, ROUND))
    return [record for part in parts for record in client.records(part)]


async def kafkas_pipes(
    systems: RunningSystems, members: Sequence[Membership], number: int, connections: int
) -> list[Pipe]:
    """Open this many connections to Kafka's coordinator, over which the same requests are spread."""
    templates = [
        frames.commit(member, n) if is_commit(n, len(members)) else frames.heartbeat(member)
        for n, member in members_for(members, number)
    ]
    return [await Pipe.open(systems.kafkas, templates[i::connections]) for i in range(connections)]


def _measure_packed_turn(
    systems: RunningSystems, client: TopicsClient, records: Sequence[Record], plan: Plan, result: MixedResult
) -> None:
    """Measure one turn on the topics, with the bytes of state that its batches wrote."""
    first = systems.last_batch()
    outcome = client.run_closed_loop(cycle(records), UNDER_WAY, plan.load_s)
    last = systems.last_batch()
    result.ours.append(outcome)
    size, batches = systems.written(first + 1, last)
    if batches:
        result.state_bytes_a_batch.append(size / batches)
        result.state_bytes_a_request.append(size / batches * (last - first) / outcome.responses)
    result.at_half.append(client.run_at_rate(cycle(records), outcome.rate / 2, plan.load_s))


def _measure_single_records(
    systems: RunningSystems, plan: Plan, members: Sequence[Membership], number: int, result: MixedResult
) -> None:
    """Measure the same requests, each in a record of its own."""
    with TopicsClient(systems.servers, PREFIX, packed=False) as client:
        records = rounds(client, members, number)
        with systems.run_only(ON_TOPICS):
            for _ in range(plan.repeats):
                result.singles.append(client.run_closed_loop(cycle(records), UNDER_WAY, plan.load_s))
    rates = [outcome.rate for outcome in result.singles]
    say(f"    a record a request: {percentile(rates, 0.5):,.0f}/s")
