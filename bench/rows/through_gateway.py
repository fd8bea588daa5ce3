"""Heartbeats and commits through one gateway process, beside Kafka's coordinator with the same client.

There are 1,000 connections with 1 and with 8 requests in flight each, like many consumers, and one connection
with 16 and with 500 in flight, like a client that pipelines.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from bench.load import frames, kafka_groups
from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, run_closed_loop
from bench.load.requests import Membership
from bench.load.topics import TopicsClient
from bench.report import Figure, Limit, ratio_at_least, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult, client_figure, errors_figure
from bench.stats import WarmUp
from bench.systems import BEHIND_GATEWAY, GATEWAY, KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems
from kafka_why.connections.address import Address

CONNECTIONS = 1_000
GROUPS = (1, 20, 1_000)
DEPTHS = (1, 8)
PIPELINED_GROUPS = 20
# By depth: what is required of the ratio to Kafka's rate, and the target.
_LIMITS = {
    1: (ratio_at_least(0.15), ratio_at_least(0.4)),
    8: (ratio_at_least(0.2), ratio_at_least(0.5)),
}
PIPELINED = {16: (ratio_at_least(0.15), ratio_at_least(0.4)), 500: (ratio_at_least(0.5), ratio_at_least(0.8))}


@dataclass
class GatewayTurns:
    """The results by turn."""

    ours: list[LoadResult] = field(default_factory=list)
    kafkas: list[LoadResult] = field(default_factory=list)
    gateway_s: list[float] = field(default_factory=list)  # the gateway's processor time for a request
    note: str = ""  # on the warm-up


def measure(bench: Bench) -> RowResult:
    """Measure many connections."""
    systems = bench.systems(NO_DELAY_MS).running
    row = RowResult()
    for depth in DEPTHS:
        for groups in GROUPS:
            what = f"{CONNECTIONS:,} connections, {depth} under way each, {_groups(groups)}"
            say(f"  {what}")
            turns = bench.call_in_process(alternate, systems, bench.plan, groups, CONNECTIONS, depth)
            _add(row, what, turns, *_LIMITS[depth])
    return row


def measure_pipelined(bench: Bench) -> RowResult:
    """Measure one connection."""
    systems = bench.systems(NO_DELAY_MS).running
    row = RowResult()
    for depth, (required, target) in PIPELINED.items():
        what = f"one connection, {depth} under way, {_groups(PIPELINED_GROUPS)}"
        say(f"  {what}")
        turns = bench.call_in_process(alternate, systems, bench.plan, PIPELINED_GROUPS, 1, depth)
        _add(row, what, turns, required, target)
    return row


def _groups(number: int) -> str:
    return f"{number:,} group{'s' * (number > 1)}"


def _add(row: RowResult, what: str, turns: GatewayTurns, required: Limit, target: Limit) -> None:
    ours, kafkas = ([outcome.rate for outcome in side] for side in (turns.ours, turns.kafkas))
    p50, p99 = ([outcome.latency_ms(q) for outcome in turns.ours] for q in (0.5, 0.99))
    row.figures += [
        Figure(what, "/s", ours, kafkas, "Kafka's own", required, target),
        Figure(f"{what}: p50", "ms", p50, [o.latency_ms(0.5) for o in turns.kafkas], "Kafka's own"),
        Figure(f"{what}: p99", "ms", p99, [o.latency_ms(0.99) for o in turns.kafkas], "Kafka's own"),
        errors_figure(what, [outcome.errors.total() for outcome in turns.ours]),
        Figure(f"{what}: the gateway's processor time a request", "µs", [s * 1e6 for s in turns.gateway_s]),
        client_figure(what, turns.ours, turns.kafkas, "Kafka's own"),
    ]
    row.notes.append(f"{what}: {turns.note}")


def alternate(systems: RunningSystems, plan: Plan, groups: int, connections: int, depth: int) -> GatewayTurns:
    """Form the groups on both sides, warm up, and measure by turns."""
    return asyncio.run(_alternate(systems, plan, groups, connections, depth))


async def _alternate(
    systems: RunningSystems, plan: Plan, groups: int, connections: int, depth: int
) -> GatewayTurns:
    group_ids = [f"gateway-{uuid.uuid4()}" for _ in range(groups)]
    turns = GatewayTurns()
    async with connected_to_both(systems, group_ids, connections) as (ours_pipes, kafkas_pipes):
        turns.note = await warm_up(systems, ours_pipes, depth, plan)
        with systems.run_only(KAFKAS_OWN):
            await run_closed_loop(kafkas_pipes, depth, plan.load_s)
        for turn in range(plan.repeats):
            say(f"    turn {turn + 1} of {plan.repeats}")
            with systems.run_only(BEHIND_GATEWAY):
                before_s = systems.cpu_s(GATEWAY)
                outcome = await run_closed_loop(ours_pipes, depth, plan.load_s)
                turns.gateway_s.append((systems.cpu_s(GATEWAY) - before_s) / outcome.responses)
                turns.ours.append(outcome)
            with systems.run_only(KAFKAS_OWN):
                turns.kafkas.append(await run_closed_loop(kafkas_pipes, depth, plan.load_s))
    return turns


@asynccontextmanager
async def connected_to_both(
    systems: RunningSystems, group_ids: Sequence[str], connections: int
) -> AsyncIterator[tuple[list[Pipe], list[Pipe]]]:
    """Form the groups on both sides, and yield connections to the gateway and to Kafka's own coordinator.

    After the block, the groups on our side are removed.
    """
    with ExitStack() as stack:
        client = stack.enter_context(TopicsClient(systems.servers, PREFIX, packed=systems.packed))
        with systems.run_only(ON_TOPICS):
            members = client.form_groups(group_ids)
        kafkas_members = await kafka_groups.form(systems.kafkas, group_ids)
        ours_pipes = await connected(systems.ours, members, connections)
        kafkas_pipes = await connected(systems.kafkas, kafkas_members, connections)
        for pipe in (*ours_pipes, *kafkas_pipes):
            stack.callback(pipe.close)
        yield ours_pipes, kafkas_pipes
        client.end_groups(members)


async def connected(address: Address, members: Sequence[Membership], connections: int) -> list[Pipe]:
    """Open connections that send heartbeats and commits. The members are spread evenly over them."""
    templates_of = [_mixed(member) for member in members]
    if connections == 1:
        return [
            await Pipe.open(
                address, [template for turn in zip(*templates_of, strict=True) for template in turn]
            )
        ]
    pipes = []
    for i in range(connections):
        templates = templates_of[i % len(members)]
        # Connections of one member begin with different requests, so that not all send commits at once.
        at = i // len(members) % len(templates)
        pipes.append(await Pipe.open(address, [*templates[at:], *templates[:at]]))
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


async def warm_up(systems: RunningSystems, pipes: Sequence[Pipe], depth: int, plan: Plan) -> str:
    """Load the gateway until its rate is stable or the time is over. Return a note about the outcome."""
    warm_up_rates = WarmUp(plan.warm_up_s / 2)
    with systems.run_only(BEHIND_GATEWAY):
        while warm_up_rates.should_continue:
            warm_up_rates.add((await run_closed_loop(pipes, depth, plan.load_s)).rate)
    return warm_up_rates.note
