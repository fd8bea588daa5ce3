"""10 s of twice the rate that is held through the gateway, then half of it.

The load has a fixed rate, whatever is answered. A request that its socket does not take waits in the client,
and its latency counts from when it was due. So the requests that could not be served have to be served later.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from kafka import TopicPartition

from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, at_rates, closed
from bench.load.topics import TopicsClient
from bench.report import Figure, Plot, Series, at_most, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.rows.through_gateway import connected, warm_up
from bench.stats import percentile
from bench.systems import PREFIX, RunningSystems
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import decode_entry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader

GROUPS = CONNECTIONS = 1_000
SESSION_TIMEOUT_MS = 45_000
OVERLOAD_S, AFTER_S, NORMAL_S = 10.0, 40.0, 10.0
NORMAL_FACTOR = 2.0
HELD_P99_S = 2.0
_TRIES = (0.9, 0.75, 0.6, 0.45, 0.3)
_TRY_S = 6.0
_QUIET_MS = 3_000


@dataclass
class Overloaded:
    """Rates in requests a second. `p99_ms` is by the second in which the requests were due."""

    held_rate: float = 0.0
    normal_p99_ms: float = 0.0
    p99_ms: list[float] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)
    expired: int = 0
    notes: list[str] = field(default_factory=list)


def measure(bench: Bench) -> Found:
    """Find the rate that is held, exceed it, and look how long it takes to recover."""
    world = bench.systems(AT_ONCE_MS).world
    result = bench.load(overload, world, bench.plan)
    again_s = normal_again_s(result)
    found, none = Found(notes=result.notes), at_most(0)
    found.figures = [
        Figure("overload: the rate that is held", "/s", [result.held_rate]),
        Figure("overload: responses with an error", "", [float(result.errors.total())], (), "", none, none),
        Figure("overload: members expired", "", [float(result.expired)], (), "", none, none),
        Figure("overload: until p99 is normal again", "s", [again_s], (), "", at_most(20), at_most(10)),
        Figure("overload: p99 at half of the held rate, before", "ms", [result.normal_p99_ms]),
    ]
    if result.errors:
        found.notes.append(f"Errors by code: {dict(result.errors)}")
    seconds = [float(second) for second in range(len(result.p99_ms))]
    series = [
        Series("p99 of the requests due in that second", seconds, result.p99_ms),
        Series("p99 at half of the held rate, before", [0.0, seconds[-1]], [result.normal_p99_ms] * 2),
    ]
    title = f"{OVERLOAD_S:.0f} s of twice the rate that is held ({result.held_rate:,.0f}/s), then half of it"
    found.plots = [Plot("overload", title, "s since the begin", "ms", series, log_y=True)]
    return found


def normal_again_s(result: Overloaded) -> float:
    """Return the seconds from the end of the overload to the second from which on p99 stays normal."""
    for second in range(len(result.p99_ms) - 1, int(OVERLOAD_S) - 1, -1):
        if result.p99_ms[second] > NORMAL_FACTOR * result.normal_p99_ms:
            return second + 1 - OVERLOAD_S
    return 0.0


def overload(world: RunningSystems, plan: Plan) -> Overloaded:
    """Run the load."""
    return asyncio.run(_overload(world, plan))


async def _overload(world: RunningSystems, plan: Plan) -> Overloaded:
    group_ids = [f"overload-{uuid.uuid4()}" for _ in range(GROUPS)]
    result = Overloaded()
    events = TopicLayout.named(PREFIX).events_topic
    with ExitStack() as stack:
        reader = stack.enter_context(closing(TopicReader(ClientConfig(world.servers))))
        reader.start(end=[TopicPartition(events, 0)])
        client = stack.enter_context(TopicsClient(world.servers, PREFIX, packed=world.packed))
        members = client.form(group_ids, session_timeout_ms=SESSION_TIMEOUT_MS)
        pipes = await connected(world.ours, members, CONNECTIONS)
        for pipe in pipes:
            stack.callback(pipe.close)
        result.notes.append(await warm_up(world, pipes, 8, plan))
        result.held_rate, is_held = await _held_rate(pipes, plan)
        if not is_held:
            result.notes.append("No rate that was tried was held: the least of them stands for it.")
        half = result.held_rate / 2
        say(f"    held: {result.held_rate:,.0f}/s; half of it")
        before = await at_rates(pipes, [(half, NORMAL_S)])
        result.normal_p99_ms = before.latency_ms(0.99)
        say(f"    p99 {result.normal_p99_ms:,.0f} ms; {OVERLOAD_S:.0f} s of twice the rate, then half of it")
        outcome = await at_rates(pipes, [(2 * result.held_rate, OVERLOAD_S), (half, AFTER_S)])
        result.p99_ms = by_second(outcome)
        result.errors = outcome.errors
        result.expired = _expired(reader, set(group_ids))
        client.end(members)
    return result


async def _held_rate(pipes: Sequence[Pipe], plan: Plan) -> tuple[float, bool]:
    """Return the greatest rate tried that is answered without errors and with a p99 of at most HELD_P99_S,
    and True. If there is none, the least rate tried, and False.
    """
    most = (await closed(pipes, 8, plan.load_s)).rate
    rate = most
    for part in _TRIES:
        rate = most * part
        outcome = await at_rates(pipes, [(rate, _TRY_S)])
        say(f"    {rate:,.0f}/s: p99 {outcome.latency_ms(0.99):,.0f} ms, errors {dict(outcome.errors)}")
        if not outcome.errors and outcome.latency_ms(0.99) <= HELD_P99_S * 1e3:
            return rate, True
    return rate, False


def by_second(outcome: LoadResult) -> list[float]:
    """Return the p99 in ms of the requests that were due in each second."""
    seconds: dict[int, list[float]] = {}
    for due_s, latency_s in zip(outcome.due_s, outcome.latency_s, strict=True):
        seconds.setdefault(int(due_s), []).append(latency_s)
    return [percentile(seconds[second], 0.99) * 1e3 for second in sorted(seconds)]


def _expired(reader: TopicReader, group_ids: set[str]) -> int:
    """Return the number of members that the coordinator has removed from these groups."""
    removed = 0
    while records := reader.poll(timeout_ms=_QUIET_MS):
        for record in records:
            entry = decode_entry(record.value)
            if isinstance(entry, HistoryEntry) and entry.group_id in group_ids:
                removed += entry.type is EntryType.MEMBER_REMOVED
    return removed
