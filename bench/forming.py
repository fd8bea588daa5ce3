"""The time in which a group forms, and in which it takes one more member.

The time is measured from the first JoinGroup request to the last SyncGroup response, with the round for
member ids (KIP-394) that all new members make. Members of the group learn from their heartbeats that another
member has joined. They send heartbeats every 3 s, the default of Kafka's clients: on both sides this is most
of the time.
"""

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from bench.measure import percentile
from bench.member import Group
from bench.report import Figure, say
from bench.sides import Sides
from bench.wire import Connection
from gateway.upstream.connections import Address

SIZES = (50, 200)
TIMEOUT_S = 300.0


@dataclass
class Formed:
    """Seconds, one value per turn."""

    first_s: list[float] = field(default_factory=list)
    one_more_s: list[float] = field(default_factory=list)


def forming_figures(members: int, initial_delay_ms: int, formed: Sides[Formed]) -> list[Figure]:
    """Return the medians."""
    first = formed.map(lambda side: percentile(side.first_s, 0.5))
    one_more = formed.map(lambda side: percentile(side.one_more_s, 0.5))
    delay = f"delay {initial_delay_ms / 1000:.0f} s"
    return [
        Figure(f"{members} members form a group, {delay}", "s", first.ours, first.kafkas),
        Figure(f"one more joins these {members}, {delay}", "s", one_more.ours, one_more.kafkas),
    ]


def measure_forming(sides: Sides[Address], members: int, turns: int) -> Sides[Formed]:
    """Form groups of this size, alternately ours and Kafka's. Raises an ExceptionGroup of WrongAnswer."""
    return asyncio.run(_by_turns(sides, members, turns))


async def _by_turns(sides: Sides[Address], members: int, turns: int) -> Sides[Formed]:
    formed = Sides(ours=Formed(), kafkas=Formed())
    for turn in range(turns):
        say(f"    turn {turn + 1} of {turns}")
        for address, side in zip(sides, formed, strict=True):
            await form(address, members, side)
    return formed


async def form(address: Address, members: int, formed: Formed) -> None:
    """Form a new group, let one more member join, and end the group; add the seconds to `formed`."""
    group = Group(f"forming-{uuid.uuid4()}")
    first = [await group.add(address) for _ in range(members)]
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        began_s = time.perf_counter()
        living = [tasks.create_task(member.live()) for member in first]
        formed.first_s.append(await group.formed_at_s() - began_s)
        one_more = await group.add(address)
        began_s = time.perf_counter()
        living.append(tasks.create_task(one_more.live()))
        formed.one_more_s.append(await group.formed_at_s() - began_s)
        for task in living:
            task.cancel()
    connection = await Connection.open(address)  # some of the members' connections wait for a response
    await group.leave(connection)
    connection.close()
    group.close()
