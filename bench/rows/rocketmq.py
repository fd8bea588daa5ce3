"""Messages of RocketMQ's Java clients, 5.5.0, through the gateway and at the plain cluster, in turn."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from bench.apart import LoadFailed
from bench.report import Figure, at_most, ratio_at_least, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.systems import COORDINATOR, PREFIX, START_TIMEOUT_S, RunningSystems, cpu_s
from cli.processes.child import Children
from embedded.jars import class_path
from embedded.java import find_java
from embedded.rocketmq import EmbeddedRocketMq

ROCKETMQ_GATEWAY = "rocketmq-gateway"
PLAIN = "the plain cluster"
_LOAD = Path(__file__).parents[1] / "load" / "RocketMqLoad.java"
_LOADS: Mapping[str, tuple[int, int]] = {
    "2,000 messages/s of 1 KiB": (2_000, 1_024),
    "20 MB/s in messages of 10 kB": (2_000, 10_000),
    "1 KiB, as fast as possible": (0, 1_024),
}
"""Messages a second, 0 for as many as possible, and bytes of each."""


class Turn(NamedTuple):
    """A load at one side: messages a second, and milliseconds from when a message was due. `cpu_us` is the
    processor time of the gateway and the coordinator for a message, in microseconds.
    """

    rate: float
    acknowledged_p50: float
    acknowledged_p99: float
    received_p50: float
    received_p99: float
    cpu_us: float

    @classmethod
    def parse(cls, line: str, cpu_s: float) -> Self:
        """Parse a line of the load. Raises LoadFailed if a message failed or is lost."""
        sent, failed, received, rate, *times = map(float, line.split())
        if failed or received < sent:
            raise LoadFailed(f"{failed:.0f} of {sent:.0f} messages failed, {received:.0f} were received")
        return cls(rate, times[0], times[1], times[2], times[3], cpu_s / sent * 1e6)


def measure(bench: Bench) -> Found:
    """Measure each load at both sides."""
    with ExitStack() as stack:
        world = bench.systems(AT_ONCE_MS).world
        cluster = stack.enter_context(EmbeddedRocketMq(bench.folder / "rocketmq", is_long_running=True))
        children = stack.enter_context(Children(bench.folder))
        gateway = children.start(
            ROCKETMQ_GATEWAY, "rocketmq-gateway", "--bootstrap-servers", world.servers, "--prefix", PREFIX,
            "--namesrv", cluster.name_server.address, "--listen", "127.0.0.1:0", "--json",
        )  # fmt: skip
        ready = gateway.wait_for_line(lambda line: line.startswith('{"gateway"'), START_TIMEOUT_S)
        world.pids[ROCKETMQ_GATEWAY] = gateway.pid
        stack.callback(world.pids.pop, ROCKETMQ_GATEWAY)
        ours, plain = _alternate(world, bench.plan, json.loads(ready)["gateway"], cluster.name_server.address)
    return Found([figure for what in _LOADS for figure in _figures(what, ours[what], plain[what])])


def _alternate(
    world: RunningSystems, plan: Plan, gateway: str, name_server: str
) -> tuple[dict[str, list[Turn]], dict[str, list[Turn]]]:
    """Return the turns of each load through the gateway, and at the plain cluster."""
    ours, plain = ({what: list[Turn]() for what in _LOADS} for _ in range(2))
    for number in range(plan.repeats):
        say(f"    turn {number + 1} of {plan.repeats}")
        with world.alone((COORDINATOR, ROCKETMQ_GATEWAY)):
            for what, turn in _play(world, plan, gateway, "through-the-gateway"):
                ours[what].append(turn)
        with world.alone(()):
            for what, turn in _play(world, plan, name_server, "at-the-cluster"):
                plain[what].append(turn)
    return ours, plain


def _play(world: RunningSystems, plan: Plan, name_server: str, group: str) -> Iterator[tuple[str, Turn]]:
    """Play the loads with new clients, after the first one for warm-up."""
    phases = [f"{rate}:{size}:{plan.load_s * 3:.0f}" for rate, size in _LOADS.values()]
    warm_up = f"2000:1024:{plan.warm_up_s:.0f}"
    java = [
        str(find_java()),
        f"-Drocketmq.namesrv.addr={name_server}",
        "-cp",
        class_path("rocketmq"),
        str(_LOAD),
    ]
    with subprocess.Popen(
        [*java, f"bench-{group}", group, warm_up, *phases], stdout=subprocess.PIPE, text=True
    ) as load:
        assert load.stdout is not None
        lines = (line.removeprefix("phase ") for line in load.stdout if line.startswith("phase "))
        next(lines, None)
        before_s = _cpu_s(world)
        for what, line in zip(_LOADS, lines, strict=True):
            after_s = _cpu_s(world)
            yield what, Turn.parse(line, after_s - before_s)
            before_s = after_s


def _cpu_s(world: RunningSystems) -> float:
    return sum(cpu_s(world.pids[name]) for name in (COORDINATOR, ROCKETMQ_GATEWAY))


def _figures(what: str, ours: list[Turn], plain: list[Turn]) -> Iterator[Figure]:
    line = ratio_at_least(0.98) if _LOADS[what][0] else None
    yield Figure(what, "/s", [it.rate for it in ours], [it.rate for it in plain], PLAIN, line)
    yield Figure(
        f"{what}: processor time of coordinator and gateway for each", "µs", [it.cpu_us for it in ours]
    )
    if line is None:
        return
    for name in ("acknowledged", "received"):
        for quantile, most_ms in (("p50", 1.0), ("p99", 5.0)):
            times, beside = ([getattr(it, f"{name}_{quantile}") for it in side] for side in (ours, plain))
            yield Figure(f"{what}: until {name}, {quantile}", "ms", times, beside, PLAIN)
            added = [it - other for it, other in zip(times, beside, strict=True)]
            yield Figure(f"{what}: until {name}, {quantile}, added", "ms", added, line=at_most(most_ms))
