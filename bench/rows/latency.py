"""The time from a single request to its response: topics, gateway, floor, and Kafka's own coordinator."""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from bench.load import frames, kafka_groups
from bench.load.pipes import Pipe, run_closed_loop
from bench.load.requests import Membership, heartbeat_request
from bench.load.topics import TopicsClient
from bench.report import Figure, Plot, Series, ratio_at_most, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.stats import WarmUp, percentile
from bench.systems import BEHIND_GATEWAY, FLOOR, KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems

PAUSE_MAX_S = 0.2
_WARM_UP_REQUESTS = 3
ON_TOPICS_NAME, GATEWAY_NAME, FLOOR_NAME, KAFKAS_NAME = (
    "on the topics",
    "through the gateway",
    "the floor",
    "Kafka's own",
)

TimeOne = Callable[[], Awaitable[float]]
"""Sends one request, and returns the seconds until its response."""


def measure(bench: Bench) -> RowResult:
    """Measure the topics, the gateway, the floor (a copying query) and Kafka's coordinator in turns."""
    processes = bench.systems(NO_DELAY_MS)
    say("  starting the floor")
    with processes.floor() as systems:
        seconds, notes = bench.call_in_process(alternate, systems, bench.plan)
    p50 = {name: [percentile(turn, 0.5) * 1e3 for turn in turns] for name, turns in seconds.items()}
    latencies_ms = {
        name: [second * 1e3 for turn in turns for second in turn] for name, turns in seconds.items()
    }
    p99 = {name: [percentile(values, 0.99)] for name, values in latencies_ms.items()}
    target = ratio_at_most(1.5)
    row = RowResult(notes=notes)
    row.figures = [
        Figure(
            "request to response on the topics, p50", "ms", p50[ON_TOPICS_NAME], p50[FLOOR_NAME], FLOOR_NAME,
            ratio_at_most(2.0), target,
        ),
        Figure(
            "request to response on the topics, p99", "ms", p99[ON_TOPICS_NAME], p99[FLOOR_NAME], FLOOR_NAME,
            ratio_at_most(2.5), target,
        ),
        Figure(
            "heartbeat through the gateway, p50", "ms", p50[GATEWAY_NAME], p50[ON_TOPICS_NAME],
            ON_TOPICS_NAME, ratio_at_most(1.3), ratio_at_most(1.1),
        ),
        Figure(
            "heartbeat through the gateway, p50", "ms", p50[GATEWAY_NAME], p50[KAFKAS_NAME], KAFKAS_NAME,
            ratio_at_most(10), ratio_at_most(5),
        ),
        Figure(
            "heartbeat through the gateway, p99", "ms", p99[GATEWAY_NAME], p99[KAFKAS_NAME], KAFKAS_NAME,
            ratio_at_most(25), ratio_at_most(10),
        ),
    ]  # fmt: skip
    series = [
        Series(
            name,
            [round(ms, 2) for ms in sorted(values)],
            [round((rank + 1) / len(values), 4) for rank in range(len(values))],
        )
        for name, values in latencies_ms.items()
    ]
    title = "From a request to its response, one at a time"
    row.plots = [Plot("latency", title, "ms", "share answered", series, log_x=True)]
    return row


def alternate(systems: RunningSystems, plan: Plan) -> tuple[dict[str, list[list[float]]], list[str]]:
    """Return by system the seconds of each request of each turn, and the notes on the warm-up."""
    return asyncio.run(_alternate(systems, plan))


async def _alternate(systems: RunningSystems, plan: Plan) -> tuple[dict[str, list[list[float]]], list[str]]:
    waits, run_id = random.Random(7), uuid.uuid4().hex[:8]
    async with AsyncExitStack() as stack:
        on_topics = stack.enter_context(TopicsClient(systems.servers, PREFIX, packed=False))
        on_floor = stack.enter_context(TopicsClient(systems.servers, FLOOR, packed=False))
        (member,) = on_topics.form_groups([f"latency-{run_id}"])
        (kafkas_member,) = await kafka_groups.form(systems.kafkas, [f"latency-{run_id}"])
        pipes = [
            await Pipe.open(systems.ours, [frames.heartbeat(member)]),
            await Pipe.open(systems.kafkas, [frames.heartbeat(kafkas_member)]),
        ]
        for pipe in pipes:
            stack.callback(pipe.close)
        sides: dict[str, tuple[Sequence[str], TimeOne]] = {
            FLOOR_NAME: ((FLOOR,), _on_topics(on_floor, member)),
            ON_TOPICS_NAME: (ON_TOPICS, _on_topics(on_topics, member)),
            GATEWAY_NAME: (BEHIND_GATEWAY, _on_wire(pipes[0])),
            KAFKAS_NAME: (KAFKAS_OWN, _on_wire(pipes[1])),
        }
        notes = []
        for name, (system_names, time_one) in sides.items():
            with systems.run_only(system_names):
                notes.append(f"{name}: {await _warm_up(time_one, plan.warm_up_s, waits)}")
                say(f"    {notes[-1]}")
        seconds: dict[str, list[list[float]]] = {name: [] for name in sides}
        for turn in range(plan.repeats):
            say(f"    turn {turn + 1} of {plan.repeats}")
            for name, (system_names, time_one) in sides.items():
                with systems.run_only(system_names):
                    await _time_some(time_one, _WARM_UP_REQUESTS, waits)
                    seconds[name].append(await _time_some(time_one, plan.single_requests, waits))
        return seconds, notes


def _on_topics(client: TopicsClient, member: Membership) -> TimeOne:
    (record,) = client.records([heartbeat_request(member)])

    async def time_one() -> float:
        return client.time_one(record)

    return time_one


def _on_wire(pipe: Pipe) -> TimeOne:
    async def time_one() -> float:
        outcome = await run_closed_loop([pipe], depth=1, seconds=0)  # ends after the first response
        return outcome.latency_s[0]

    return time_one


async def _time_some(time_one: TimeOne, number: int, waits: random.Random) -> list[float]:
    """Send this many requests at random moments, one at a time. Return the seconds of each."""
    seconds = []
    for _ in range(number):
        seconds.append(await time_one())
        await asyncio.sleep(waits.uniform(0, PAUSE_MAX_S))
    return seconds


async def _warm_up(time_one: TimeOne, limit_s: float, waits: random.Random) -> str:
    """Send requests until their median time is stable, for at most `limit_s`. Return the outcome."""
    warm_up = WarmUp(limit_s)
    while warm_up.should_continue:
        warm_up.add(percentile(await _time_some(time_one, 20, waits), 0.5))
    return warm_up.note
