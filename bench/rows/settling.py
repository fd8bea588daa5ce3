"""The time from one more member until all are settled, by protocol, beside Kafka's coordinator.

Classic eager (`range`): all members give all partitions up and join again. Classic cooperative
(`cooperative-sticky`): members give up what moves, and join twice. Consumer protocol (KIP-848): no member
joins again, and only those concerned give up and take what moves. A group is settled when all members have
the newest generation or epoch, and together all partitions. Heartbeats are sent every 3 s in a classic group
and every 5 s in a group of the consumer protocol, which are Kafka's defaults: this is most of the time.
"""

import asyncio
import time
import uuid
from contextlib import closing

from kafka.admin import NewTopic

from bench.load.connection import Connection
from bench.load.consumers import ConsumerGroup
from bench.load.cooperative import CooperativeGroup
from bench.load.member import LoadGroup
from bench.report import Figure, ratio_at_most, say
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found, Plan
from bench.systems import BEHIND_GATEWAY, KAFKAS_OWN, RunningSystems
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig

SIZES = (50, 200)
PARTITIONS_EACH = 2
TURNS = 2
TIMEOUT_S = 120.0

AnyGroup = LoadGroup | ConsumerGroup
PROTOCOLS = ("classic, eager", "classic, cooperative", "consumer protocol")


def measure(bench: Bench) -> Found:
    """Let one more member join groups of each protocol, alternately at our coordinator and at Kafka's."""
    world = bench.systems(KAFKAS_DELAY_MS).world
    found = Found()
    for members in SIZES:
        topic = f"settling-{uuid.uuid4()}"
        with closing(kafka_clients.admin(ClientConfig(world.servers))) as admin:
            admin.create_topics([NewTopic(topic, members * PARTITIONS_EACH, 1)])
        for protocol in PROTOCOLS:
            say(f"  {members} members, {protocol}")
            ours, kafkas = bench.load(alternate, world, bench.plan, protocol, topic, members)
            what = f"one more joins {members} members until all are settled, {protocol}"
            line, goal = ratio_at_most(1.05), ratio_at_most(1.02)
            found.figures.append(Figure(what, "s", ours, kafkas, "Kafka's own", line, goal))
    return found


def alternate(
    world: RunningSystems, plan: Plan, protocol: str, topic: str, members: int
) -> tuple[list[float], list[float]]:
    """Return our seconds and Kafka's, one value a turn. Raises an ExceptionGroup of WrongAnswer."""
    ours: list[float] = []
    kafkas: list[float] = []
    for _ in range(1 if plan.is_quick else TURNS):
        for systems, address, seconds in (
            (BEHIND_GATEWAY, world.ours, ours),
            (KAFKAS_OWN, world.kafkas, kafkas),
        ):
            with world.alone(systems):
                seconds.append(asyncio.run(settle(address, protocol, topic, members)))
    return ours, kafkas


async def settle(address: Address, protocol: str, topic: str, members: int) -> float:
    """Form a group, let one more member join, and end the group. Return the seconds until it was settled."""
    group = _group(protocol, topic, members * PARTITIONS_EACH)
    settled_at_s = group.settled_at_s if isinstance(group, ConsumerGroup) else group.formed_at_s
    first = [await group.add(address) for _ in range(members)]
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        living = [tasks.create_task(member.live()) for member in first]
        await settled_at_s()
        added = await group.add(address)
        began_s = time.perf_counter()
        living.append(tasks.create_task(added.live()))
        took_s = await settled_at_s() - began_s
        for task in living:
            task.cancel()
    connection = await Connection.open(address)  # some of the members' connections wait for a response
    await group.leave(connection)
    connection.close()
    if isinstance(group, LoadGroup):
        group.close()
    return took_s


def _group(protocol: str, topic: str, partitions: int) -> AnyGroup:
    group_id = f"settling-{uuid.uuid4()}"
    if protocol == "classic, eager":
        return LoadGroup(group_id)
    if protocol == "classic, cooperative":
        return CooperativeGroup(group_id, topic, partitions)
    return ConsumerGroup(topic, partitions, group_id)
