"""The cost of systems with no members, and with three."""

import asyncio
import time
import uuid

from bench.load.member import LoadGroup
from bench.report import Figure, at_most, say
from bench.rows.bench import DEFAULT_DELAY_MS, Bench, RowResult
from bench.systems import COORDINATOR, GATEWAY, RunningSystems, cores_of

SETTLED_S, QUICK_SETTLED_S = 30.0, 10.0
WINDOW_S = 10.0
MEMBERS = 3


def measure(bench: Bench) -> RowResult:
    """Measure the cores used without members, and with a few."""
    plan, systems = bench.plan, bench.new_systems(DEFAULT_DELAY_MS).running
    settled_s = QUICK_SETTLED_S if plan.is_quick else SETTLED_S
    say(f"  {settled_s:.0f} s to settle")
    time.sleep(settled_s)
    cores_by_process = {
        what: [cores_of(pid, WINDOW_S) for _ in range(min(plan.repeats, 3))]
        for what, pid in (
            ("the coordinator with Spark", systems.pids[COORDINATOR]),
            ("the gateway", systems.pids[GATEWAY]),
            ("the broker", systems.broker_pid),
        )
    }
    figures = [Figure(f"no members: {what}", "cores", cores) for what, cores in cores_by_process.items()]
    first = figures[0]
    figures[0] = Figure(first.what, first.unit, first.ours, required=at_most(0.5), target=at_most(0.2))
    say(f"  {MEMBERS} members")
    cores = bench.call_in_process(with_members, systems, min(plan.repeats, 3))
    what = f"{MEMBERS} members: the coordinator with Spark, and the gateway"
    figures.append(Figure(what, "cores", cores, required=at_most(0.45), target=at_most(0.25)))
    return RowResult(figures)


def with_members(systems: RunningSystems, repeats: int) -> list[float]:
    """Return the cores that are used in each of `repeats` windows while a group sends heartbeats."""
    return asyncio.run(_with_members(systems, repeats))


async def _with_members(systems: RunningSystems, repeats: int) -> list[float]:
    group = LoadGroup(f"idle-{uuid.uuid4()}")
    members = [await group.add(systems.ours) for _ in range(MEMBERS)]
    tasks = [asyncio.create_task(member.live()) for member in members]
    await group.formed_at_s()
    pids = systems.pids[COORDINATOR], systems.pids[GATEWAY]
    cores = []
    for _ in range(repeats + 1):
        windows = [asyncio.to_thread(cores_of, pid, WINDOW_S) for pid in pids]
        cores.append(sum(await asyncio.gather(*windows)))
    for task in tasks:
        task.cancel()
    group.close()
    return cores[1:]  # without the first window, in which the group has formed just before
