"""The time in which a group forms, and in which it takes one more member, beside Kafka's coordinator.

The time is from the first JoinGroup request to the last SyncGroup response, with the round for member ids
(KIP-394) that all new members make, and with Kafka's default initial delay of 3 s. Members of the group find
from their heartbeats that another member has joined. They send heartbeats every 3 s, the default of Kafka's
clients: on both sides this is most of the time.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.load.connection import Connection
from bench.load.member import LoadGroup
from bench.report import Figure, ratio_at_most, say
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found, Plan
from bench.systems import BEHIND_GATEWAY, KAFKAS_OWN, RunningSystems
from kafka_why.connections.address import Address

SIZES = (50, 200)
LARGE = 500
TIMEOUT_S = 300.0


@dataclass
class Formed:
    """Seconds, one value a turn."""

    first_s: list[float] = field(default_factory=list)
    one_more_s: list[float] = field(default_factory=list)


def measure(bench: Bench) -> Found:
    """Form groups, alternately ours and Kafka's."""
    world = bench.systems(KAFKAS_DELAY_MS).world
    found = Found()
    for members in (*SIZES, LARGE):
        say(f"  a group of {members} members")
        ours, kafkas = bench.load(alternate, world, bench.plan, members)
        what = f"{members} members, from the first JoinGroup to the last SyncGroup response"
        found.figures.append(Figure(what, "s", ours.first_s, kafkas.first_s, "Kafka's own"))
        if members in SIZES:
            what = f"one more joins {members} members, until all are settled"
            line, goal = ratio_at_most(1.3), ratio_at_most(1.1)
            found.figures.append(
                Figure(what, "s", ours.one_more_s, kafkas.one_more_s, "Kafka's own", line, goal)
            )
    return found


def alternate(world: RunningSystems, plan: Plan, members: int) -> tuple[Formed, Formed]:
    """Return ours and Kafka's. Raises an ExceptionGroup of WrongAnswer."""
    return asyncio.run(_alternate(world, plan, members))


async def _alternate(world: RunningSystems, plan: Plan, members: int) -> tuple[Formed, Formed]:
    ours, kafkas = Formed(), Formed()
    sides: Sequence[tuple[Sequence[str], Address, Formed]] = (
        (BEHIND_GATEWAY, world.ours, ours),
        (KAFKAS_OWN, world.kafkas, kafkas),
    )
    for turn in range(min(plan.repeats, 3)):
        say(f"    turn {turn + 1}")
        for systems, address, formed in sides:
            with world.alone(systems):
                await form(address, members, formed, one_more=members in SIZES)
    return ours, kafkas


async def form(address: Address, members: int, formed: Formed, *, one_more: bool) -> None:
    """Form a new group, let one more member join, and end the group; add the seconds to `formed`."""
    group = LoadGroup(f"forming-{uuid.uuid4()}")
    first = [await group.add(address) for _ in range(members)]
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        began_s = time.perf_counter()
        living = [tasks.create_task(member.live()) for member in first]
        formed.first_s.append(await group.formed_at_s() - began_s)
        if one_more:
            added = await group.add(address)
            began_s = time.perf_counter()
            living.append(tasks.create_task(added.live()))
            formed.one_more_s.append(await group.formed_at_s() - began_s)
        for task in living:
            task.cancel()
    connection = await Connection.open(address)  # some of the members' connections wait for a response
    await group.leave(connection)
    connection.close()
    group.close()
