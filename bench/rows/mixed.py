"""Heartbeats and commits of many groups, beside Kafka's coordinator with the same requests.

On the topics the requests are packed as the gateway and the client pack them: those of a slot into a record.
The client keeps UNDER_WAY of them under way. Kafka's coordinator gets the same requests on 1 and on 8
connections, with DEPTH under way on each.
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
from bench.load.pipes import Pipe, closed
from bench.load.requests import Membership, is_commit, members_for, mixed_requests
from bench.load.topics import Record, TopicsClient
from bench.report import Figure, Limit, ratio_at_least, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan, client_figure, errors_figure
from bench.stats import WarmUp, percentile
from bench.systems import KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems

GROUPS = (20, 1_000, 20_000)
CONNECTIONS = (1, 8)
UNDER_WAY = 10_000
ROUND = 5_000
DEPTH = 500
_LINES = {20: 1.0, 1_000: 0.7, 20_000: 0.5}
_GOALS = {20: 1.5, 1_000: 1.0, 20_000: 1.0}


@dataclass
class Beside:
    """The loads of one number of groups: one outcome a turn."""

    ours: list[LoadResult] = field(default_factory=list)
    at_half: list[LoadResult] = field(default_factory=list)
    """At half of the rate of the turn before it, in an open loop."""
    singles: list[LoadResult] = field(default_factory=list)
    kafkas: dict[int, list[LoadResult]] = field(default_factory=dict)
    state_bytes_a_request: list[float] = field(default_factory=list)
    state_bytes_a_batch: list[float] = field(default_factory=list)
    request_bytes: float = 0.0
    notes: list[str] = field(default_factory=list)


def measure(bench: Bench) -> Found:
    """Measure the systems alternately, for each number of groups."""
    world = bench.systems(AT_ONCE_MS).world
    found = Found()
    for groups in GROUPS:
        say(f"  groups: {groups:,}")
        beside = bench.load(alternate, world, bench.plan, groups)
        found.notes += [f"{groups:,} groups: {note}" for note in beside.notes]
        found.figures += _figures(groups, beside)
    return found


def _figures(groups: int, beside: Beside) -> list[Figure]:
    what = f"{groups:,} groups on the topics"
    ours = [outcome.rate for outcome in beside.ours]
    line, goal = ratio_at_least(_LINES[groups]), ratio_at_least(_GOALS[groups])
    figures = [
        _rate(what, ours, beside.kafkas[connections], connections, line, goal) for connections in CONNECTIONS
    ]
    figures += [
        Figure(f"{what}, {loop}: p{q}", "ms", [outcome.latency_ms(q / 100) for outcome in outcomes])
        for loop, outcomes in (("closed loop", beside.ours), ("half of that rate", beside.at_half))
        for q in (50, 99)
    ]
    most = CONNECTIONS[-1]
    figures += [
        errors_figure(what, [outcome.errors.total() for outcome in beside.ours]),
        client_figure(what, beside.ours, beside.kafkas[most], f"Kafka's own, {most} connections"),
    ]
    if beside.state_bytes_a_batch:
        written, of = beside.state_bytes_a_request, "bytes of the request"
        figures += [
            Figure(f"{what}: bytes of state written a request", "B", written, [beside.request_bytes], of),
            Figure(f"{what}: bytes of state written a batch", "B", beside.state_bytes_a_batch),
        ]
    if beside.singles:
        singles = [outcome.rate for outcome in beside.singles]
        figures.append(Figure(f"{what}, a record a request", "/s", singles, ours, "packed"))
    return figures


def _rate(
    what: str, ours: Sequence[float], kafkas: Sequence[LoadResult], connections: int, line: Limit, goal: Limit
) -> Figure:
    plural = "s" if connections > 1 else ""
    beside = [outcome.rate for outcome in kafkas]
    return Figure(what, "/s", ours, beside, f"Kafka's own, {connections} connection{plural}", line, goal)


def alternate(world: RunningSystems, plan: Plan, groups: int) -> Beside:
    """Form the groups on both sides, warm up, and measure by turns."""
    return asyncio.run(_alternate(world, plan, groups))


async def _alternate(world: RunningSystems, plan: Plan, groups: int) -> Beside:
    group_ids = [f"mixed-{uuid.uuid4()}" for _ in range(groups)]
    number = max(2 * groups, ROUND)
    beside = Beside(kafkas={connections: [] for connections in CONNECTIONS})
    async with AsyncExitStack() as stack:
        client = stack.enter_context(TopicsClient(world.servers, PREFIX, packed=world.packed))
        with world.alone(ON_TOPICS):
            began_s = time.perf_counter()
            members = client.form(group_ids)
            took_s = time.perf_counter() - began_s
        beside.notes.append(f"formed on the topics in {took_s:.1f} s")
        say(f"    {beside.notes[-1]}")
        records = rounds(client, members, number)
        beside.request_bytes = sum(len(record.value) for record in records) / number
        pipes = {}
        with world.alone(KAFKAS_OWN):
            theirs = await kafka_groups.form(world.kafkas, group_ids)
            for connections in CONNECTIONS:
                pipes[connections] = await kafkas_pipes(world, theirs, number, connections)
                for pipe in pipes[connections]:
                    stack.callback(pipe.close)
        say("    formed at Kafka's own coordinator")
        with world.alone(ON_TOPICS):
            warm_up = WarmUp(plan.warm_up_s)
            while warm_up.goes_on:
                warm_up.add(client.closed(cycle(records), UNDER_WAY, plan.load_s).rate)
            beside.notes.append(warm_up.note)
        for turn in range(plan.repeats + 1):  # the first is Kafka's warm-up
            say(f"    turn {turn} of {plan.repeats}" if turn else "    warming up Kafka's own")
            if turn:
                with world.alone(ON_TOPICS):
                    _on_topics(world, client, records, plan, beside)
            for connections in CONNECTIONS:
                with world.alone(KAFKAS_OWN):
                    outcome = await closed(pipes[connections], DEPTH, plan.load_s)
                if turn:
                    beside.kafkas[connections].append(outcome)
        if groups == GROUPS[1] and world.packed:
            _one_by_one(world, plan, members, number, beside)
        client.end(members)
    return beside


def rounds(client: TopicsClient, members: Sequence[Membership], number: int) -> list[Record]:
    """Return the requests of a load as records, packed by ROUND requests, which come together."""
    requests = mixed_requests(members, number)
    parts = (requests[first : first + ROUND] for first in range(0, number, ROUND))
    return [record for part in parts for record in client.records(part)]


async def kafkas_pipes(
    world: RunningSystems, members: Sequence[Membership], number: int, connections: int
) -> list[Pipe]:
    """Return the same requests for Kafka's coordinator, on this many connections."""
    templates = [
        frames.commit(member, n) if is_commit(n, len(members)) else frames.heartbeat(member)
        for n, member in members_for(members, number)
    ]
    return [await Pipe.open(world.kafkas, templates[i::connections]) for i in range(connections)]


def _on_topics(
    world: RunningSystems, client: TopicsClient, records: Sequence[Record], plan: Plan, beside: Beside
) -> None:
    """Measure one turn on the topics, with the bytes of state that its batches wrote."""
    first = world.last_batch()
    outcome = client.closed(cycle(records), UNDER_WAY, plan.load_s)
    last = world.last_batch()
    beside.ours.append(outcome)
    size, batches = world.written(first + 1, last)
    if batches:
        beside.state_bytes_a_batch.append(size / batches)
        beside.state_bytes_a_request.append(size / batches * (last - first) / outcome.responses)
    beside.at_half.append(client.at_rate(cycle(records), outcome.rate / 2, plan.load_s))


def _one_by_one(
    world: RunningSystems, plan: Plan, members: Sequence[Membership], number: int, beside: Beside
) -> None:
    """Return the same requests, each in a record of its own."""
    with TopicsClient(world.servers, PREFIX, packed=False) as client:
        records = rounds(client, members, number)
        with world.alone(ON_TOPICS):
            for _ in range(plan.repeats):
                beside.singles.append(client.closed(cycle(records), UNDER_WAY, plan.load_s))
    rates = [outcome.rate for outcome in beside.singles]
    say(f"    a record a request: {percentile(rates, 0.5):,.0f}/s")
