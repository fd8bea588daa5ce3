"""The cost of systems that have no members at all, or three."""

import asyncio
import time
import uuid

from bench.load.member import LoadGroup
from bench.report import Figure, at_most, say
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found
from bench.systems import COORDINATOR, GATEWAY, RunningSystems, cores_of

SETTLED_S, QUICK_SETTLED_S = 30.0, 10.0
WINDOW_S = 10.0
MEMBERS = 3


def measure(bench: Bench) -> Found:
    """Count processor time for a while after the start."""
    running = bench.new_systems(KAFKAS_DELAY_MS)
    plan, world = bench.plan, running.world
    settled_s = QUICK_SETTLED_S if plan.is_quick else SETTLED_S
    say(f"  {settled_s:.0f} s to settle")
    time.sleep(settled_s)
    used = {
        what: [cores_of(pid, WINDOW_S) for _ in range(min(plan.repeats, 3))]
        for what, pid in (
            ("the coordinator with Spark", world.pids[COORDINATOR]),
            ("the gateway", world.pids[GATEWAY]),
            ("the broker", world.broker_pid),
        )
    }
    figures = [Figure(f"no members: {what}", "cores", cores) for what, cores in used.items()]
    first = figures[0]
    figures[0] = Figure(first.what, first.unit, first.ours, (), "", at_most(0.5), at_most(0.2))
    say(f"  {MEMBERS} members")
    cores = bench.load(with_members, world, min(plan.repeats, 3))
    what = f"{MEMBERS} members: the coordinator with Spark, and the gateway"
    figures.append(Figure(what, "cores", cores, (), "", at_most(0.45), at_most(0.25)))
    return Found(figures)


def with_members(world: RunningSystems, repeats: int) -> list[float]:
    """Return the cores that are used while a group lives on, in each of this many windows."""
    return asyncio.run(_with_members(world, repeats))


async def _with_members(world: RunningSystems, repeats: int) -> list[float]:
    group = LoadGroup(f"idle-{uuid.uuid4()}")
    members = [await group.add(world.ours) for _ in range(MEMBERS)]
    living = [asyncio.create_task(member.live()) for member in members]
    await group.formed_at_s()
    pids = world.pids[COORDINATOR], world.pids[GATEWAY]
    cores = []
    for _ in range(repeats + 1):
        windows = [asyncio.to_thread(cores_of, pid, WINDOW_S) for pid in pids]
        cores.append(sum(await asyncio.gather(*windows)))
    for task in living:
        task.cancel()
    group.close()
    return cores[1:]  # the first one has the group's beginning
