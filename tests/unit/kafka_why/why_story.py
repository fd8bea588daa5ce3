"""A group's night in commands: three workers start, one dies, another is slow, a fourth joins and leaves.

A second story is a group that is quiet for days, on a partition that other groups use.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from tests.harness.histories import Recorder
from tests.harness.options import milliseconds

BEGIN_MS = 1_795_230_000_000  # 2026-11-21 03:00 UTC
END_MS = BEGIN_MS + 79_000

_COMMANDS = (
    "at 0s",
    "config group.initial.rebalance.delay.ms=3000",
    "join worker-1 api=3 session=30s",
    "at 1s",
    "join worker-2 api=3 session=30s",
    "join worker-3 api=3 session=10s",
    "at 6s",
    "sync worker-1 assign=@worker-1:jobs-0+jobs-1,@worker-2:jobs-2+jobs-3,@worker-3:jobs-4+jobs-5",
    "sync worker-2",
    "sync worker-3",
    "at 12s",
    "heartbeat worker-1",
    "heartbeat worker-2",
    # worker-3 is dead: it sends nothing after its SyncGroup.
    "at 18s",
    "heartbeat worker-1",
    "join worker-1 id=@worker-1",
    "at 22500ms",
    "join worker-2 id=@worker-2",
    "at 23200ms",
    "sync worker-1 assign=@worker-1:jobs-0+jobs-1+jobs-4,@worker-2:jobs-2+jobs-3+jobs-5",
    "sync worker-2",
    "at 40s",
    "heartbeat worker-1",
    "heartbeat worker-2",
    "join worker-4 api=3 session=30s",
    "at 41s",
    "join worker-2 id=@worker-2",
    "at 46s",
    "join worker-1 id=@worker-1",
    # The leader assigns badly: worker-1 and worker-2 exchange partitions needlessly.
    "sync worker-1 assign=@worker-1:jobs-2+jobs-3,@worker-2:jobs-0+jobs-1,@worker-4:jobs-4+jobs-5",
    "sync worker-2",
    "sync worker-4",
    "at 58s",
    "heartbeat worker-1",
    "heartbeat worker-2",
    "leave worker-4 reason='consumer poll timeout has expired'",
    "at 59s",
    "join worker-1 id=@worker-1",
)

STORY = tuple(
    f"at {BEGIN_MS + milliseconds(command[3:])}ms" if command.startswith("at ") else command
    for command in _COMMANDS
)

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def quiet_for(days: int, *between: str) -> list[HistoryEntry]:
    """Group `g` has two rebalances in its first minute, from time 0 on, and one after `days` days."""
    return Recorder().play(
        "config group.initial.rebalance.delay.ms=0 group.max.session.timeout.ms=2147483647",
        "at 0s",
        "join a api=3 session=24d instance=i-a",
        "sync a assign=@a:t-0+t-1+t-2+t-3",
        "at 60s",
        "join b api=3 session=24d",
        "join a id=@a",
        "sync a assign=@a:t-0+t-1,@b:t-2",
        "sync b",
        *between,
        f"at {days}d",
        "join c api=3 session=24d",
        "join a id=@a",
        "join b id=@b",
        "sync a assign=@a:t-0,@b:t-2,@c:t-1+t-3",
        "sync b",
        "sync c",
    )


def with_others(history: Sequence[HistoryEntry], *, before_days: int) -> list[HistoryEntry]:
    """Return the history with entries of another group, one a minute.

    They start `before_days` days before the history and end 10 minutes after it.
    """
    begin_ms, end_ms = history[0].at_ms - before_days * DAY_MS, history[-1].at_ms + 10 * MINUTE_MS
    others = [
        replace(history[-1], group_id="other", at_ms=at_ms) for at_ms in range(begin_ms, end_ms, MINUTE_MS)
    ]
    return sorted([*history, *others], key=lambda entry: entry.at_ms)


SHARE_STORY = (
    "topics orders=4",
    "at 10s",
    "share A e0",
    "at 10200ms",
    "share B e0",
    "at 10300ms",
    "init watcher partitions[orders 0-2]",
    "init watcher error=15",
    "at 12s",
    "share B e2",
    "at 15s",
    "share A e2",
    "at 21s",
    "share C e0",
    "at 23s",
    "share C -1",
    "at 25s",
    "share A e3",
)
"""A share group's first members, one of which comes late, and one that comes and goes."""
