"""Messages of RocketMQ's Java clients (5.5.0), through the gateway and at the plain cluster, in turns."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from bench.report import Figure, at_most, ratio_at_least, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.separate_process import LoadFailed
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
"""Messages a second (0: as many as possible), and bytes of each."""


class Turn(NamedTuple):
    """A load at one side: messages a second, and milliseconds from a message's due time until its
    acknowledgement or receipt. `cpu_us` is the processor time of the gateway and the coordinator for a
    message, in microseconds.
    """

    rate: float
    acknowledged_p50: float  # ms, as the next three
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


def measure(bench: Bench) -> RowResult:
    """Measure each load at both sides."""
    with ExitStack() as stack:
        systems = bench.systems(NO_DELAY_MS).running
        cluster = stack.enter_context(EmbeddedRocketMq(bench.folder / "rocketmq", is_long_running=True))
        children = stack.enter_context(Children(bench.folder))
        gateway = children.start(
            ROCKETMQ_GATEWAY, "rocketmq-gateway", "--bootstrap-servers", systems.servers, "--prefix", PREFIX,
            "--namesrv", cluster.name_server.address, "--listen", "127.0.0.1:0", "--json",
        )  # fmt: skip
        ready = gateway.wait_for_line(lambda line: line.startswith('{"gateway"'), START_TIMEOUT_S)
        systems.pids[ROCKETMQ_GATEWAY] = gateway.pid
        stack.callback(systems.pids.pop, ROCKETMQ_GATEWAY)
        ours, plain = _alternate(
            systems, bench.plan, json.loads(ready)["gateway"], cluster.name_server.address
        )
    return RowResult([figure for what in _LOADS for figure in _figures(what, ours[what], plain[what])])


def _alternate(
    systems: RunningSystems, plan: Plan, gateway: str, name_server: str
) -> tuple[dict[str, list[Turn]], dict[str, list[Turn]]]:
    """Return the turns of each load through the gateway, and at the plain cluster."""
    ours, plain = ({what: list[Turn]() for what in _LOADS} for _ in range(2))
    for number in range(plan.repeats):
        say(f"    turn {number + 1} of {plan.repeats}")
        with systems.run_only((COORDINATOR, ROCKETMQ_GATEWAY)):
            for what, turn in _run_loads(systems, plan, gateway, "through-the-gateway"):
                ours[what].append(turn)
        with systems.run_only(()):
            for what, turn in _run_loads(systems, plan, name_server, "at-the-cluster"):
                plain[what].append(turn)
    return ours, plain


def _run_loads(
    systems: RunningSystems, plan: Plan, name_server: str, group: str
) -> Iterator[tuple[str, Turn]]:
    """Run a warm-up and then the loads, with new clients. Yield the result of each load."""
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
        next(lines, None)  # the warm-up
        before_s = _cpu_s(systems)
        for what, line in zip(_LOADS, lines, strict=True):
            after_s = _cpu_s(systems)
            yield what, Turn.parse(line, after_s - before_s)
            before_s = after_s


def _cpu_s(systems: RunningSystems) -> float:
    return sum(cpu_s(systems.pids[name]) for name in (COORDINATOR, ROCKETMQ_GATEWAY))


def _figures(what: str, ours: list[Turn], plain: list[Turn]) -> Iterator[Figure]:
    # A load without a rate (0) is as fast as possible. It has no limit, and its times are not compared.
    required = ratio_at_least(0.98) if _LOADS[what][0] else None
    yield Figure(what, "/s", [turn.rate for turn in ours], [turn.rate for turn in plain], PLAIN, required)
    yield Figure(
        f"{what}: processor time of coordinator and gateway for each", "µs", [turn.cpu_us for turn in ours]
    )
    if required is None:
        return
    for name in ("acknowledged", "received"):
        for quantile, limit_ms in (("p50", 1.0), ("p99", 5.0)):
            ours_ms, plain_ms = (
                [getattr(turn, f"{name}_{quantile}") for turn in side] for side in (ours, plain)
            )
            yield Figure(f"{what}: until {name}, {quantile}", "ms", ours_ms, plain_ms, PLAIN)
            added_ms = [ms - other_ms for ms, other_ms in zip(ours_ms, plain_ms, strict=True)]
            yield Figure(
                f"{what}: until {name}, {quantile}, added", "ms", added_ms, required=at_most(limit_ms)
            )
