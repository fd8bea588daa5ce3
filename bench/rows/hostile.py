"""Members and committing clients beside an attacker of each kind, and beside all attackers at once.

For the gateway and for Kafka's own coordinator, a row has the members' latency without and with the attacker,
their errors, the memory of the gateway, and the outcomes of the attacker's tries. Neither side is paused
during the other's turn, because its members would expire.
"""

import asyncio
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.load import frames, kafka_groups
from bench.load.attackers import ATTACKS, BIG_MIB, BIG_TOPIC, JOINS, LOOK_UPS, MIB, OFFSETS
from bench.load.frames import Template
from bench.load.load_result import LoadResult, WrongAnswer
from bench.load.pipes import Pipe, run_at_rates
from bench.load.requests import Membership
from bench.report import Figure, at_most, say
from bench.rows.bench import NO_DELAY_MS, Bench, RowResult
from bench.systems import GATEWAY, RunningSystems
from kafka_why.connections.address import Address

MEMBERS, COMMITTING = 200, 20
HEARTBEATS_PER_S, COMMITS_PER_S = MEMBERS / 3, 100.0
SESSION_TIMEOUT_MS = 10_000
WARM_UP_S = 2.0
ALL = "all at once"
# A broker has no limit on all frames together (queued.max.request.bytes), so they would exhaust its heap.
NOT_AT_KAFKA = ("frames without an end", ALL)
MEMORY_MIB = 1_500  # the limit of the gateway's memory
# Limits of a latency with an attacker, divided by that without. p99 may also grow as at Kafka's coordinator.
GROWTH, TARGET_GROWTH = 5.0, 2.0
_TURN_S, _QUICK_TURN_S = 12.0, 6.0
_BEFORE_S = 1.0  # added to the attacker's duration for its start
_TIMEOUT_S = 60.0


@dataclass
class AttackResult:
    """The results of one side: the members' load without and with the attacker, and the attacker's tries."""

    alone: LoadResult
    attacked: LoadResult
    tries: Counter[str]
    memory_mib: float = 0.0

    def growth(self, q: float) -> float:
        """Return the latency at quantile q with the attacker, divided by that without."""
        return self.attacked.latency_ms(q) / self.alone.latency_ms(q)


def measure(bench: Bench) -> RowResult:
    """Run one attack after the other, and all at once at the end."""
    systems = bench.new_systems(NO_DELAY_MS).running
    seconds = _QUICK_TURN_S if bench.plan.is_quick else _TURN_S
    _write_big_topic(systems.servers)
    row = RowResult(table=[["attack", "side", "p50 ms", "p99 ms", "errors", "MiB", "tries"]])
    ours: dict[str, AttackResult] = {}
    kafkas: dict[str, AttackResult] = {}
    for name in (*ATTACKS, ALL):
        say(f"  {name}")
        ours[name] = _run_side(bench, systems, systems.ours, name, seconds)
        row.table.append(_table_row(name, "gateway", ours[name]))
        if name not in NOT_AT_KAFKA:
            kafkas[name] = _run_side(bench, systems, systems.kafkas, name, seconds)
            row.table.append(_table_row(name, "Kafka's own", kafkas[name]))
    p99_limits = {name: max(GROWTH, kafkas[name].growth(0.99) if name in kafkas else 0) for name in ours}
    p50_limits = dict.fromkeys((OFFSETS, LOOK_UPS, JOINS), GROWTH)
    errors = sum(side.attacked.errors.total() + side.alone.errors.total() for side in ours.values())
    memory_mib = max(side.memory_mib for side in ours.values())
    row.figures = [
        _worst("beside attackers, p99 of the others", 0.99, ours, kafkas, p99_limits),
        _worst("beside three of the attackers, p50 of the others", 0.5, ours, kafkas, p50_limits),
        Figure("beside attackers: errors of the others", "", [float(errors)], required=at_most(0)),
        Figure("beside attackers: memory of the gateway", "MiB", [memory_mib], required=at_most(MEMORY_MIB)),
    ]
    return row


def _worst(
    what: str,
    q: float,
    ours: Mapping[str, AttackResult],
    kafkas: Mapping[str, AttackResult],
    limits: Mapping[str, float],
) -> Figure:
    """Return the growth of the latency at quantile q under the attack that exceeds its limit most, or else
    comes closest to it.
    """
    worst = max(limits, key=lambda name: ours[name].growth(q) / limits[name])
    return Figure(
        f"{what}: the worst ({worst})",
        "x",
        [ours[worst].growth(q)],
        [kafkas[worst].growth(q)] if worst in kafkas else (),
        "Kafka's own",
        at_most(limits[worst]),
        at_most(TARGET_GROWTH),
    )


def run_attacked(address: Address, names: Sequence[str], seconds: float) -> AttackResult:
    """Run new members, first without the attackers and then with them."""
    return asyncio.run(_run_attacked(address, names, seconds))


async def _run_attacked(address: Address, names: Sequence[str], seconds: float) -> AttackResult:
    group_ids = [f"others-{uuid.uuid4()}" for _ in range(MEMBERS)]
    members = await kafka_groups.form(address, group_ids, SESSION_TIMEOUT_MS)
    await run_members(address, members, WARM_UP_S)
    alone = await run_members(address, members, seconds)
    arguments = (str(address), str(seconds + _BEFORE_S), *names)
    attacker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load.attackers", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert attacker.stdout is not None
    await attacker.stdout.readline()  # the line that it prints when it begins
    attacked = await run_members(address, members, seconds)
    tries, _ = await attacker.communicate()
    return AttackResult(alone, attacked, Counter(msgspec.json.decode(tries, type=dict[str, int])))


async def run_members(address: Address, members: Sequence[Membership], seconds: float) -> LoadResult:
    """Send heartbeats at the normal rate, and commits of some members. A lost connection is an error."""
    beats, commits = await asyncio.gather(
        _at_rate(address, [frames.heartbeat(member) for member in members], HEARTBEATS_PER_S, seconds),
        _at_rate(address, commits_of(members), COMMITS_PER_S, seconds),
    )
    return LoadResult(beats.errors + commits.errors, latency_s=beats.latency_s + commits.latency_s)


def commits_of(members: Sequence[Membership]) -> list[Template]:
    return [frames.commit(member, 1) for member in members[:COMMITTING]]


async def _at_rate(address: Address, templates: list[Template], rate: float, seconds: float) -> LoadResult:
    pipes = [await Pipe.open(address, [template]) for template in templates]
    try:
        async with asyncio.timeout(seconds + _TIMEOUT_S):
            return await run_at_rates(pipes, [(rate, seconds)])
    except (WrongAnswer, TimeoutError) as error:
        say(f"    the others: {error!r}")
        return LoadResult(Counter({-1: 1}), latency_s=[_TIMEOUT_S])
    finally:
        for pipe in pipes:
            pipe.close()


def _run_side(
    bench: Bench, systems: RunningSystems, address: Address, name: str, seconds: float
) -> AttackResult:
    with _sampled_memory_mib(systems) as memory:
        side = bench.call_in_process(run_attacked, address, list(ATTACKS) if name == ALL else [name], seconds)
    side.memory_mib = max(memory)
    say(f"    {_table_row(name, str(address), side)[1:]}")
    return side


@contextmanager
def _sampled_memory_mib(systems: RunningSystems) -> Iterator[list[float]]:
    """Sample the memory of the gateway until the block ends."""
    samples_mib = [systems.memory_bytes(GATEWAY) / MIB]
    ending = threading.Event()

    def watch() -> None:
        while not ending.wait(0.25):
            samples_mib.append(systems.memory_bytes(GATEWAY) / MIB)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples_mib
    finally:
        ending.set()
        thread.join()


def _table_row(name: str, server: str, side: AttackResult) -> list[str]:
    p50, p99 = (f"{side.alone.latency_ms(q):.1f} -> {side.attacked.latency_ms(q):.1f}" for q in (0.5, 0.99))
    codes = side.alone.errors + side.attacked.errors
    errors = ", ".join(f"{number} of code {code}" for code, number in sorted(codes.items()))
    tries = ", ".join(f"{number:,} {what}" for what, number in sorted(side.tries.items()))
    memory = f"{side.memory_mib:.0f}" if server != "Kafka's own" else ""
    return [name, server, p50, p99, errors or "0", memory, tries]


def _write_big_topic(servers: str) -> None:
    """Create and fill the topic that one attack fetches."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(BIG_TOPIC, 1, 1)])[BIG_TOPIC].result(_TIMEOUT_S)
    producer = Producer({"bootstrap.servers": servers, "log_level": 4, "message.max.bytes": 1_000_000})
    for _ in range(BIG_MIB * 2):
        producer.produce(BIG_TOPIC, bytes(MIB // 2))
    assert producer.flush(_TIMEOUT_S) == 0
