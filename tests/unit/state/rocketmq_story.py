"""One night of a RocketMQ group: three clients connect, one falls silent, one connects with
another's client id.
"""

from kafka_why.contract.rocketmq.history import HistoryEntry
from tests.harness.simulated_rocketmq import SimulatedRocketMq, consumer

BEGIN_MS = 1_795_230_000_000  # 2026-11-21 03:00 UTC
END_MS = BEGIN_MS + 360_000


def night(group_id: str = "g") -> list[HistoryEntry]:
    """Return the history of a group. At its end two connections have the client id worker-1."""
    world = SimulatedRocketMq(jobs=6)
    world.now_ms = BEGIN_MS
    group = consumer(group_id, "jobs")
    workers = []
    for number in (1, 2, 3):
        workers.append(world.start(f"worker-{number}", group))
        world.run_for(10_000)
    world.crash(workers[1], seen=False)
    world.run_for(150_000)
    twin = world.start("worker-1", group)
    world.run_for(30_000)
    world.stop(twin)
    world.run_for(30_000)
    world.start("worker-1", group)
    world.run_for(BEGIN_MS + 300_000 - world.now_ms)
    return world.history
