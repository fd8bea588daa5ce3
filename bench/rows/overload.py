"""Ten seconds of load through the gateway at twice the rate that it can sustain, then at half of that rate.

The rate of the load does not depend on the answers. A request that the socket cannot take waits in the
client, and its latency counts from when it was due. So every request of the overload has to be served later.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from kafka import TopicPartition

from bench.load.load_result import LoadResult
from bench.load.pipes import Pipe, run_at_rates, run_closed_loop
from bench.load.topics import TopicsClient
from bench.report import Figure, Plot, Series, at_most, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.rows.through_gateway import connected, warm_up
from bench.stats import percentile
from bench.systems import PREFIX, RunningSystems
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import decode_any_entry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader

GROUPS = CONNECTIONS = 1_000
SESSION_TIMEOUT_MS = 45_000
OVERLOAD_S, AFTER_S, NORMAL_S = 10.0, 40.0, 10.0
NORMAL_FACTOR = 2.0  # p99 is normal again at this multiple of p99 before the overload
HELD_P99_S = 2.0  # a rate is held if p99 is at most this
# Fractions of the rate of a closed loop, which are tried in this order.
_TRIES = (0.9, 0.75, 0.6, 0.45, 0.3)
_TRY_S = 6.0
_QUIET_MS = 3_000  # without a record for this time, the events topic is read to its end


@dataclass
class OverloadResult:
    """The results of the overload, and of the normal load before it."""

    held_rate: float = 0.0  # the sustained rate in requests a second
    normal_p99_ms: float = 0.0  # at half of `held_rate`, before the overload
    p99_ms: list[float] = field(default_factory=list)  # by second: of the requests due in it
    errors: Counter[int] = field(default_factory=Counter)
    expired: int = 0  # members that the coordinator has removed
    notes: list[str] = field(default_factory=list)


def measure(bench: Bench) -> RowResult:
    """Find the rate that is held, exceed it, and measure how long the recovery takes."""
    systems = bench.systems(NO_DELAY_MS).running
    result = bench.call_in_process(overload, systems, bench.plan)
    until_normal_s = recovery_s(result)
    row = RowResult(notes=result.notes)
    none = at_most(0)
    row.figures = [
        Figure("overload: the rate that is held", "/s", [result.held_rate]),
        Figure(
            "overload: responses with an error",
            "",
            [float(result.errors.total())],
            required=none,
            target=none,
        ),
        Figure("overload: members expired", "", [float(result.expired)], required=none, target=none),
        Figure(
            "overload: until p99 is normal again",
            "s",
            [until_normal_s],
            required=at_most(20),
            target=at_most(10),
        ),
        Figure("overload: p99 at half of the held rate, before", "ms", [result.normal_p99_ms]),
    ]
    if result.errors:
        row.notes.append(f"Errors by code: {dict(result.errors)}")
    seconds = [float(second) for second in range(len(result.p99_ms))]
    series = [
        Series("p99 of the requests due in that second", seconds, result.p99_ms),
        Series("p99 at half of the held rate, before", [0.0, seconds[-1]], [result.normal_p99_ms] * 2),
    ]
    title = f"{OVERLOAD_S:.0f} s of twice the rate that is held ({result.held_rate:,.0f}/s), then half of it"
    row.plots = [Plot("overload", title, "s since the begin", "ms", series, log_y=True)]
    return row


def recovery_s(result: OverloadResult) -> float:
    """Return the seconds from the end of the overload until p99 is normal and stays so."""
    for second in range(len(result.p99_ms) - 1, int(OVERLOAD_S) - 1, -1):
        if result.p99_ms[second] > NORMAL_FACTOR * result.normal_p99_ms:
            return second + 1 - OVERLOAD_S
    return 0.0


def overload(systems: RunningSystems, plan: Plan) -> OverloadResult:
    """Run the load."""
    return asyncio.run(_overload(systems, plan))


async def _overload(systems: RunningSystems, plan: Plan) -> OverloadResult:
    group_ids = [f"overload-{uuid.uuid4()}" for _ in range(GROUPS)]
    result = OverloadResult()
    events = TopicLayout.named(PREFIX).events_topic
    with ExitStack() as stack:
        reader = stack.enter_context(closing(TopicReader(ClientConfig(systems.servers))))
        reader.start(end=[TopicPartition(events, 0)])
        client = stack.enter_context(TopicsClient(systems.servers, PREFIX, packed=systems.packed))
        members = client.form_groups(group_ids, session_timeout_ms=SESSION_TIMEOUT_MS)
        pipes = await connected(systems.ours, members, CONNECTIONS)
        for pipe in pipes:
            stack.callback(pipe.close)
        result.notes.append(await warm_up(systems, pipes, 8, plan))
        result.held_rate, is_held = await _held_rate(pipes, plan)
        if not is_held:
            result.notes.append("No rate that was tried was held: the least of them stands for it.")
        half = result.held_rate / 2
        say(f"    held: {result.held_rate:,.0f}/s; half of it")
        before = await run_at_rates(pipes, [(half, NORMAL_S)])
        result.normal_p99_ms = before.latency_ms(0.99)
        say(f"    p99 {result.normal_p99_ms:,.0f} ms; {OVERLOAD_S:.0f} s of twice the rate, then half of it")
        outcome = await run_at_rates(pipes, [(2 * result.held_rate, OVERLOAD_S), (half, AFTER_S)])
        result.p99_ms = by_second(outcome)
        result.errors = outcome.errors
        result.expired = _expired(reader, set(group_ids))
        client.end_groups(members)
    return result


async def _held_rate(pipes: Sequence[Pipe], plan: Plan) -> tuple[float, bool]:
    """Return the greatest rate that is answered without errors and with a p99 of at most HELD_P99_S, and
    True. If no rate is, return the least one tried, and False.
    """
    max_rate = (await run_closed_loop(pipes, 8, plan.load_s)).rate
    rate = max_rate
    for fraction in _TRIES:
        rate = max_rate * fraction
        outcome = await run_at_rates(pipes, [(rate, _TRY_S)])
        say(f"    {rate:,.0f}/s: p99 {outcome.latency_ms(0.99):,.0f} ms, errors {dict(outcome.errors)}")
        if not outcome.errors and outcome.latency_ms(0.99) <= HELD_P99_S * 1e3:
            return rate, True
    return rate, False


def by_second(outcome: LoadResult) -> list[float]:
    """Return the p99 in ms of the requests that were due in each second."""
    latencies_s: dict[int, list[float]] = {}
    for due_s, latency_s in zip(outcome.due_s, outcome.latency_s, strict=True):
        latencies_s.setdefault(int(due_s), []).append(latency_s)
    return [percentile(latencies_s[second], 0.99) * 1e3 for second in sorted(latencies_s)]


def _expired(reader: TopicReader, group_ids: set[str]) -> int:
    """Return the number of members that the coordinator has removed from these groups."""
    count = 0
    while records := reader.poll(timeout_ms=_QUIET_MS):
        for record in records:
            entry = decode_any_entry(record.value)
            if isinstance(entry, HistoryEntry) and entry.group_id in group_ids:
                count += entry.type is EntryType.MEMBER_REMOVED
    return count
