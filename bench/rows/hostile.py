"""Members and committing clients beside one attacker of each kind, and beside all of them at once.

Through the gateway and at Kafka's own coordinator: the latency of the others without and with the attacker,
their errors, the memory of the gateway, and what became of the attacker's tries. Both sides run all the time,
because a member that is stopped for long expires.
"""

import asyncio
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.load import frames, kafka_groups
from bench.load.attackers import ATTACKS, BIG_MIB, BIG_TOPIC, MIB
from bench.load.frames import Template
from bench.load.load_result import LoadResult, WrongAnswer
from bench.load.pipes import Pipe, at_rates
from bench.load.requests import Membership
from bench.report import Figure, at_most, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found
from bench.systems import GATEWAY, RunningSystems
from kafka_why.connections.address import Address

MEMBERS, COMMITTING = 200, 20
HEARTBEATS_PER_S, COMMITS_PER_S = MEMBERS / 3, 100.0
SESSION_TIMEOUT_MS = 10_000
WARM_UP_S = 2.0
ALL = "all at once"
# They would take the heap of a broker that has no bound for all frames together (queued.max.request.bytes).
NOT_AT_KAFKA = ("frames without an end", ALL)
MEMORY_MIB, P99_RATIO = 1_500, 2.0
_TURN_S, _QUICK_TURN_S = 12.0, 6.0
_BEFORE_S = 1.0
_TIMEOUT_S = 60.0


@dataclass
class Side:
    """The results at one side: what the others met without and with the attacker, and the outcomes of its
    tries.
    """

    alone: LoadResult
    attacked: LoadResult
    tries: Counter[str]
    memory_mib: float = 0.0


def measure(bench: Bench) -> Found:
    """Attack in each way by turns."""
    running = bench.new_systems(AT_ONCE_MS)
    world = running.world
    seconds = _QUICK_TURN_S if bench.plan.is_quick else _TURN_S
    _fill(world.servers)
    found = Found(table=[["attack", "side", "p50 ms", "p99 ms", "errors", "MiB", "tries"]])
    worst, errors, memory = [], [], []
    for name in (*ATTACKS, ALL):
        say(f"  {name}")
        side = _side(bench, world, world.ours, name, seconds)
        found.table.append(_line(name, "gateway", side))
        worst.append(side.attacked.latency_ms(0.99) / side.alone.latency_ms(0.99))
        errors.append(float(side.attacked.errors.total() + side.alone.errors.total()))
        memory.append(side.memory_mib)
        if name not in NOT_AT_KAFKA:
            kafkas = _side(bench, world, world.kafkas, name, seconds)
            found.table.append(_line(name, "Kafka's own", kafkas))
    found.figures = [
        Figure("beside attackers, p99 of the others: the worst", "x", [max(worst)], line=at_most(P99_RATIO)),
        Figure("beside attackers: errors of the others", "", [sum(errors)], line=at_most(0)),
        Figure("beside attackers: memory of the gateway", "MiB", [max(memory)], line=at_most(MEMORY_MIB)),
    ]
    return found


def beside(address: Address, names: Sequence[str], seconds: float) -> Side:
    """Let new members go on, first without the attackers and then with them."""
    return asyncio.run(_beside(address, names, seconds))


async def _beside(address: Address, names: Sequence[str], seconds: float) -> Side:
    group_ids = [f"others-{uuid.uuid4()}" for _ in range(MEMBERS)]
    members = await kafka_groups.form(address, group_ids, SESSION_TIMEOUT_MS)
    await go_on(address, members, WARM_UP_S)
    alone = await go_on(address, members, seconds)
    arguments = (str(address), str(seconds + _BEFORE_S), *names)
    attacker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load.attackers", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert attacker.stdout is not None
    await attacker.stdout.readline()  # it begins
    attacked = await go_on(address, members, seconds)
    tries, _ = await attacker.communicate()
    return Side(alone, attacked, Counter(msgspec.json.decode(tries, type=dict[str, int])))


async def go_on(address: Address, members: Sequence[Membership], seconds: float) -> LoadResult:
    """Keep the members at their normal pace, and let some of them commit. A lost connection is an error."""
    beats, commits = await asyncio.gather(
        _at_rate(address, [frames.heartbeat(member) for member in members], HEARTBEATS_PER_S, seconds),
        _at_rate(address, commits_of(members), COMMITS_PER_S, seconds),
    )
    both = LoadResult(beats.errors + commits.errors)
    both.latency_s = beats.latency_s + commits.latency_s
    return both


def commits_of(members: Sequence[Membership]) -> list[Template]:
    return [frames.commit(member, 1) for member in members[:COMMITTING]]


async def _at_rate(address: Address, templates: list[Template], rate: float, seconds: float) -> LoadResult:
    pipes = [await Pipe.open(address, [template]) for template in templates]
    try:
        async with asyncio.timeout(seconds + _TIMEOUT_S):
            return await at_rates(pipes, [(rate, seconds)])
    except (WrongAnswer, TimeoutError) as error:
        say(f"    the others: {error!r}")
        return LoadResult(Counter({-1: 1}), latency_s=[_TIMEOUT_S])
    finally:
        for pipe in pipes:
            pipe.close()


def _side(bench: Bench, world: RunningSystems, address: Address, name: str, seconds: float) -> Side:
    with _watched(world) as memory:
        side = bench.load(beside, address, list(ATTACKS) if name == ALL else [name], seconds)
    side.memory_mib = max(memory)
    say(f"    {_line(name, str(address), side)[1:]}")
    return side


@contextmanager
def _watched(world: RunningSystems) -> Iterator[list[float]]:
    """Sample the memory of the gateway until the block ends."""
    found = [world.memory_bytes(GATEWAY) / MIB]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.25):
            found.append(world.memory_bytes(GATEWAY) / MIB)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _line(name: str, where: str, side: Side) -> list[str]:
    p50, p99 = (f"{side.alone.latency_ms(q):.1f} -> {side.attacked.latency_ms(q):.1f}" for q in (0.5, 0.99))
    codes = side.alone.errors + side.attacked.errors
    errors = ", ".join(f"{number} of code {code}" for code, number in sorted(codes.items()))
    tries = ", ".join(f"{number:,} {what}" for what, number in sorted(side.tries.items()))
    memory = f"{side.memory_mib:.0f}" if where != "Kafka's own" else ""
    return [name, where, p50, p99, errors or "0", memory, tries]


def _fill(servers: str) -> None:
    """Make the large topic."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(BIG_TOPIC, 1, 1)])[BIG_TOPIC].result(_TIMEOUT_S)
    producer = Producer({"bootstrap.servers": servers, "log_level": 4, "message.max.bytes": 1_000_000})
    for _ in range(BIG_MIB * 2):
        producer.produce(BIG_TOPIC, bytes(MIB // 2))
    assert producer.flush(_TIMEOUT_S) == 0
