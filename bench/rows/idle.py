"""What the systems cost that have no members at all."""

from bench.report import Figure, at_most, say
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found
from bench.systems import COORDINATOR, GATEWAY, cores_of

SETTLED_S, QUICK_SETTLED_S = 30.0, 10.0
WINDOW_S = 10.0


def measure(bench: Bench) -> Found:
    """Count processor time for a while after the start."""
    running = bench.new_systems(KAFKAS_DELAY_MS)
    plan, world = bench.plan, running.world
    settled_s = QUICK_SETTLED_S if plan.is_quick else SETTLED_S
    say(f"  {settled_s:.0f} s to settle")
    cores_of(world.pids[COORDINATOR], settled_s)
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
    return Found(figures)
