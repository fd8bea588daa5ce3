"""The time until a group has formed, and until one more member has joined, beside Kafka's coordinator.

The time is from the first JoinGroup request to the last SyncGroup response. It includes the extra request of
new members for their ids (KIP-394), and Kafka's default initial delay of 3 s. Members learn from their
heartbeats that another member has joined. They send one every 3 s, the default of Kafka's clients. This wait
is most of the time on both sides.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.load.connection import Connection
from bench.load.member import LoadGroup
from bench.report import Figure, ratio_at_most, say
from bench.rows.bench import DEFAULT_DELAY_MS, Bench, Plan, RowResult
from bench.systems import BEHIND_GATEWAY, KAFKAS_OWN, RunningSystems
from kafka_why.connections.address import Address

SIZES = (50, 200)
LARGE = 500
TIMEOUT_S = 300.0


@dataclass
class JoinTimes:
    """The seconds until a group has formed, and until one more member has joined, one value a turn."""

    formed_s: list[float] = field(default_factory=list)
    one_more_s: list[float] = field(default_factory=list)


def measure(bench: Bench) -> RowResult:
    """Form groups, alternately ours and Kafka's."""
    systems = bench.systems(DEFAULT_DELAY_MS).running
    row = RowResult()
    for members in (*SIZES, LARGE):
        say(f"  a group of {members} members")
        ours, kafkas = bench.call_in_process(alternate, systems, bench.plan, members)
        what = f"{members} members, from the first JoinGroup to the last SyncGroup response"
        row.figures.append(Figure(what, "s", ours.formed_s, kafkas.formed_s, "Kafka's own"))
        if members in SIZES:
            what = f"one more joins {members} members, until all are settled"
            required, target = ratio_at_most(1.3), ratio_at_most(1.1)
            row.figures.append(
                Figure(what, "s", ours.one_more_s, kafkas.one_more_s, "Kafka's own", required, target)
            )
    return row


def alternate(systems: RunningSystems, plan: Plan, members: int) -> tuple[JoinTimes, JoinTimes]:
    """Return the times at our coordinator and at Kafka's. Raises an ExceptionGroup of WrongAnswer."""
    return asyncio.run(_alternate(systems, plan, members))


async def _alternate(systems: RunningSystems, plan: Plan, members: int) -> tuple[JoinTimes, JoinTimes]:
    ours, kafkas = JoinTimes(), JoinTimes()
    sides: Sequence[tuple[Sequence[str], Address, JoinTimes]] = (
        (BEHIND_GATEWAY, systems.ours, ours),
        (KAFKAS_OWN, systems.kafkas, kafkas),
    )
    for turn in range(min(plan.repeats, 3)):
        say(f"    turn {turn + 1}")
        for system_names, address, times in sides:
            with systems.run_only(system_names):
                await form(address, members, times, one_more=members in SIZES)
    return ours, kafkas


async def form(address: Address, members: int, times: JoinTimes, *, one_more: bool) -> None:
    """Form a new group, let one more member join, and end the group; add the seconds to `times`."""
    group = LoadGroup(f"forming-{uuid.uuid4()}")
    members_added = [await group.add(address) for _ in range(members)]
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        began_s = time.perf_counter()
        member_tasks = [tasks.create_task(member.live()) for member in members_added]
        times.formed_s.append(await group.formed_at_s() - began_s)
        if one_more:
            added = await group.add(address)
            began_s = time.perf_counter()
            member_tasks.append(tasks.create_task(added.live()))
            times.one_more_s.append(await group.formed_at_s() - began_s)
        for task in member_tasks:
            task.cancel()
    # A new connection, because some of the members' connections wait for a response.
    connection = await Connection.open(address)
    await group.leave(connection)
    connection.close()
    group.close()
