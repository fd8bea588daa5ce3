"""From a request to its response, one at a time: topics, gateway, floor, Kafka's own coordinator."""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from bench.load import frames, kafka_groups
from bench.load.pipes import Pipe, closed
from bench.load.requests import Membership, heartbeat_request
from bench.load.topics import TopicsClient
from bench.report import Figure, Plot, Series, ratio_at_most, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.stats import WarmUp, percentile
from bench.systems import BEHIND_GATEWAY, FLOOR, KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems

PAUSE_MAX_S = 0.2
_UNCOUNTED = 3
ON_TOPICS_IS, GATEWAY_IS, FLOOR_IS, KAFKAS_IS = (
    "on the topics",
    "through the gateway",
    "the floor",
    "Kafka's own",
)

One = Callable[[], Awaitable[float]]


def measure(bench: Bench) -> Found:
    """Measure the four systems alternately."""
    running = bench.systems(AT_ONCE_MS)
    say("  starting the floor")
    with running.floor() as world:
        seconds, notes = bench.load(alternate, world, bench.plan)
    p50 = {name: [percentile(turn, 0.5) * 1e3 for turn in turns] for name, turns in seconds.items()}
    every = {name: [one * 1e3 for turn in turns for one in turn] for name, turns in seconds.items()}
    p99 = {name: [percentile(values, 0.99)] for name, values in every.items()}
    goal = ratio_at_most(1.5)
    found = Found(notes=notes)
    found.figures = [
        Figure(
            "request to response on the topics, p50", "ms", p50[ON_TOPICS_IS], p50[FLOOR_IS], FLOOR_IS,
            ratio_at_most(2.0), goal,
        ),
        Figure(
            "request to response on the topics, p99", "ms", p99[ON_TOPICS_IS], p99[FLOOR_IS], FLOOR_IS,
            ratio_at_most(2.5), goal,
        ),
        Figure(
            "heartbeat through the gateway, p50", "ms", p50[GATEWAY_IS], p50[ON_TOPICS_IS], ON_TOPICS_IS,
            ratio_at_most(1.3), ratio_at_most(1.1),
        ),
        Figure(
            "heartbeat through the gateway, p50", "ms", p50[GATEWAY_IS], p50[KAFKAS_IS], KAFKAS_IS,
            ratio_at_most(10), ratio_at_most(5),
        ),
        Figure(
            "heartbeat through the gateway, p99", "ms", p99[GATEWAY_IS], p99[KAFKAS_IS], KAFKAS_IS,
            ratio_at_most(25), ratio_at_most(10),
        ),
    ]  # fmt: skip
    series = [
        Series(
            name,
            [round(one, 2) for one in sorted(values)],
            [round((place + 1) / len(values), 4) for place in range(len(values))],
        )
        for name, values in every.items()
    ]
    title = "From a request to its response, one at a time"
    found.plots = [Plot("latency", title, "ms", "share answered", series, log_x=True)]
    return found


def alternate(world: RunningSystems, plan: Plan) -> tuple[dict[str, list[list[float]]], list[str]]:
    """Return by system the seconds of each request of each turn, and the notes on the warm-up."""
    return asyncio.run(_alternate(world, plan))


async def _alternate(world: RunningSystems, plan: Plan) -> tuple[dict[str, list[list[float]]], list[str]]:
    waits, run = random.Random(7), uuid.uuid4().hex[:8]
    async with AsyncExitStack() as stack:
        on_topics = stack.enter_context(TopicsClient(world.servers, PREFIX, packed=False))
        on_floor = stack.enter_context(TopicsClient(world.servers, FLOOR, packed=False))
        (member,) = on_topics.form([f"latency-{run}"])
        (kafkas_member,) = await kafka_groups.form(world.kafkas, [f"latency-{run}"])
        pipes = [
            await Pipe.open(world.ours, [frames.heartbeat(member)]),
            await Pipe.open(world.kafkas, [frames.heartbeat(kafkas_member)]),
        ]
        for pipe in pipes:
            stack.callback(pipe.close)
        sides: dict[str, tuple[Sequence[str], One]] = {
            FLOOR_IS: ((FLOOR,), _on_topics(on_floor, member)),
            ON_TOPICS_IS: (ON_TOPICS, _on_topics(on_topics, member)),
            GATEWAY_IS: (BEHIND_GATEWAY, _on_wire(pipes[0])),
            KAFKAS_IS: (KAFKAS_OWN, _on_wire(pipes[1])),
        }
        notes = []
        for name, (systems, one) in sides.items():
            with world.alone(systems):
                notes.append(f"{name}: {await _warm_up(one, plan.warm_up_s, waits)}")
                say(f"    {notes[-1]}")
        seconds: dict[str, list[list[float]]] = {name: [] for name in sides}
        for turn in range(plan.repeats):
            say(f"    turn {turn + 1} of {plan.repeats}")
            for name, (systems, one) in sides.items():
                with world.alone(systems):
                    await _some(one, _UNCOUNTED, waits)
                    seconds[name].append(await _some(one, plan.singles, waits))
        return seconds, notes


def _on_topics(client: TopicsClient, member: Membership) -> One:
    (record,) = client.records([heartbeat_request(member)])

    async def one() -> float:
        return client.one(record)

    return one


def _on_wire(pipe: Pipe) -> One:
    async def one() -> float:
        outcome = await closed([pipe], 1, 0)
        return outcome.latency_s[0]

    return one


async def _some(one: One, number: int, waits: random.Random) -> list[float]:
    """Send this many requests at random moments, one at a time."""
    seconds = []
    for _ in range(number):
        seconds.append(await one())
        await asyncio.sleep(waits.uniform(0, PAUSE_MAX_S))
    return seconds


async def _warm_up(one: One, limit_s: float, waits: random.Random) -> str:
    warm_up = WarmUp(limit_s)
    while warm_up.goes_on:
        warm_up.add(percentile(await _some(one, 20, waits), 0.5))
    return warm_up.note
