"""Heartbeats and commits through one gateway process, beside Kafka's coordinator with the same client.

1,000 connections with 1 and with 8 requests under way each, as many consumers have them; and one connection
with 16 and 500 under way, as a client has that pipelines.
"""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bench.load import frames, kafka_groups
from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, closed
from bench.load.requests import Membership
from bench.load.topics import TopicsClient
from bench.report import Figure, Limit, ratio_at_least, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan, client_figure, errors_figure
from bench.stats import WarmUp
from bench.systems import BEHIND_GATEWAY, GATEWAY, KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems
from kafka_why.connections.address import Address

CONNECTIONS = 1_000
GROUPS = (1, 20, 1_000)
DEPTHS = (1, 8)
PIPELINED_GROUPS = 20
_LIMITS = {
    1: (ratio_at_least(0.15), ratio_at_least(0.4)),
    8: (ratio_at_least(0.2), ratio_at_least(0.5)),
}
PIPELINED = {16: (ratio_at_least(0.15), ratio_at_least(0.4)), 500: (ratio_at_least(0.5), ratio_at_least(0.8))}


@dataclass
class Turns:
    """The outcomes by turn, and the gateway's processor time for a request, in seconds."""

    ours: list[LoadResult] = field(default_factory=list)
    kafkas: list[LoadResult] = field(default_factory=list)
    gateway_s: list[float] = field(default_factory=list)
    note: str = ""


def measure(bench: Bench) -> Found:
    """Measure many connections."""
    world = bench.systems(AT_ONCE_MS).world
    found = Found()
    for depth in DEPTHS:
        for groups in GROUPS:
            what = f"{CONNECTIONS:,} connections, {depth} under way each, {_groups(groups)}"
            say(f"  {what}")
            turns = bench.load(alternate, world, bench.plan, groups, CONNECTIONS, depth)
            _add(found, what, turns, *_LIMITS[depth])
    return found


def measure_pipelined(bench: Bench) -> Found:
    """Measure one connection."""
    world = bench.systems(AT_ONCE_MS).world
    found = Found()
    for depth, (line, goal) in PIPELINED.items():
        what = f"one connection, {depth} under way, {_groups(PIPELINED_GROUPS)}"
        say(f"  {what}")
        turns = bench.load(alternate, world, bench.plan, PIPELINED_GROUPS, 1, depth)
        _add(found, what, turns, line, goal)
    return found


def _groups(number: int) -> str:
    return f"{number:,} group{'s' * (number > 1)}"


def _add(found: Found, what: str, turns: Turns, line: Limit, goal: Limit) -> None:
    ours, kafkas = ([outcome.rate for outcome in side] for side in (turns.ours, turns.kafkas))
    p50, p99 = ([outcome.latency_ms(q) for outcome in turns.ours] for q in (0.5, 0.99))
    found.figures += [
        Figure(what, "/s", ours, kafkas, "Kafka's own", line, goal),
        Figure(f"{what}: p50", "ms", p50, [o.latency_ms(0.5) for o in turns.kafkas], "Kafka's own"),
        Figure(f"{what}: p99", "ms", p99, [o.latency_ms(0.99) for o in turns.kafkas], "Kafka's own"),
        errors_figure(what, [outcome.errors.total() for outcome in turns.ours]),
        Figure(f"{what}: the gateway's processor time a request", "µs", [s * 1e6 for s in turns.gateway_s]),
        client_figure(what, turns.ours, turns.kafkas, "Kafka's own"),
    ]
    found.notes.append(f"{what}: {turns.note}")


def alternate(world: RunningSystems, plan: Plan, groups: int, connections: int, depth: int) -> Turns:
    """Form the groups on both sides, warm up, and measure by turns."""
    return asyncio.run(_alternate(world, plan, groups, connections, depth))


async def _alternate(world: RunningSystems, plan: Plan, groups: int, connections: int, depth: int) -> Turns:
    group_ids = [f"gateway-{uuid.uuid4()}" for _ in range(groups)]
    turns = Turns()
    async with AsyncExitStack() as stack:
        client = stack.enter_context(TopicsClient(world.servers, PREFIX, packed=world.packed))
        with world.alone(ON_TOPICS):
            members = client.form(group_ids)
        theirs = await kafka_groups.form(world.kafkas, group_ids)
        ours_pipes = await connected(world.ours, members, connections)
        kafkas_pipes = await connected(world.kafkas, theirs, connections)
        for pipe in (*ours_pipes, *kafkas_pipes):
            stack.callback(pipe.close)
        turns.note = await warm_up(world, ours_pipes, depth, plan)
        with world.alone(KAFKAS_OWN):
            await closed(kafkas_pipes, depth, plan.load_s)
        for turn in range(plan.repeats):
            say(f"    turn {turn + 1} of {plan.repeats}")
            with world.alone(BEHIND_GATEWAY):
                before_s = world.cpu_s(GATEWAY)
                outcome = await closed(ours_pipes, depth, plan.load_s)
                turns.gateway_s.append((world.cpu_s(GATEWAY) - before_s) / outcome.responses)
                turns.ours.append(outcome)
            with world.alone(KAFKAS_OWN):
                turns.kafkas.append(await closed(kafkas_pipes, depth, plan.load_s))
        client.end(members)
    return turns


async def connected(address: Address, members: Sequence[Membership], connections: int) -> list[Pipe]:
    """Open connections over which the members' groups are spread evenly. Each sends heartbeats and
    commits.
    """
    mixed = [_mixed(member) for member in members]
    if connections == 1:
        return [
            await Pipe.open(address, [template for each in zip(*mixed, strict=True) for template in each])
        ]
    pipes = []
    for i in range(connections):
        turned = mixed[i % len(mixed)]
        at = i // len(mixed) % len(turned)
        pipes.append(await Pipe.open(address, [*turned[at:], *turned[:at]]))
    return pipes


def _mixed(member: Membership) -> list[frames.Template]:
    """Return five heartbeats and three commits."""
    beat = frames.heartbeat(member)
    return [
        beat,
        frames.commit(member, 1),
        beat,
        beat,
        frames.commit(member, 2),
        beat,
        frames.commit(member, 3),
        beat,
    ]


async def warm_up(world: RunningSystems, pipes: Sequence[Pipe], depth: int, plan: Plan) -> str:
    """Load our side until its rate is stable. Returns a note."""
    warming = WarmUp(plan.warm_up_s / 2)
    with world.alone(BEHIND_GATEWAY):
        while warming.goes_on:
            warming.add((await closed(pipes, depth, plan.load_s)).rate)
    return warming.note
