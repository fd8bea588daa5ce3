"""The time from the join of one more member until all are settled, by protocol, beside Kafka's coordinator.

In a classic eager group (`range`), all members revoke all partitions and join again. In a classic cooperative
group (`cooperative-sticky`), members revoke only the partitions that move, and join twice. With the consumer
protocol (KIP-848), no member joins again, and only the members concerned revoke and receive partitions. A
group is settled when all members have the newest generation or epoch and own all partitions. Most of the time
is the heartbeat interval, with Kafka's defaults: 3 s in a classic group, 5 s with the consumer protocol.
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
from bench.rows.bench import DEFAULT_DELAY_MS, Bench, Plan, RowResult
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


def measure(bench: Bench) -> RowResult:
    """Let one more member join groups of each protocol, alternately at our coordinator and at Kafka's."""
    systems = bench.systems(DEFAULT_DELAY_MS).running
    row = RowResult()
    for members in SIZES:
        topic = f"settling-{uuid.uuid4()}"
        with closing(kafka_clients.admin(ClientConfig(systems.servers))) as admin:
            admin.create_topics([NewTopic(topic, members * PARTITIONS_EACH, 1)])
        for protocol in PROTOCOLS:
            say(f"  {members} members, {protocol}")
            ours, kafkas = bench.call_in_process(alternate, systems, bench.plan, protocol, topic, members)
            what = f"one more joins {members} members until all are settled, {protocol}"
            required, target = ratio_at_most(1.05), ratio_at_most(1.02)
            row.figures.append(Figure(what, "s", ours, kafkas, "Kafka's own", required, target))
    return row


def alternate(
    systems: RunningSystems, plan: Plan, protocol: str, topic: str, members: int
) -> tuple[list[float], list[float]]:
    """Return our seconds and Kafka's, one value a turn. Raises an ExceptionGroup of WrongAnswer."""
    ours: list[float] = []
    kafkas: list[float] = []
    for _ in range(1 if plan.is_quick else TURNS):
        for system_names, address, seconds in (
            (BEHIND_GATEWAY, systems.ours, ours),
            (KAFKAS_OWN, systems.kafkas, kafkas),
        ):
            with systems.run_only(system_names):
                seconds.append(asyncio.run(settle(address, protocol, topic, members)))
    return ours, kafkas


async def settle(address: Address, protocol: str, topic: str, members: int) -> float:
    """Form a group, let one more member join, and end the group. Return the seconds until it was settled."""
    group = _group(protocol, topic, members * PARTITIONS_EACH)
    settled_at_s = group.settled_at_s if isinstance(group, ConsumerGroup) else group.formed_at_s
    members_added = [await group.add(address) for _ in range(members)]
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        member_tasks = [tasks.create_task(member.live()) for member in members_added]
        await settled_at_s()
        added = await group.add(address)
        began_s = time.perf_counter()
        member_tasks.append(tasks.create_task(added.live()))
        took_s = await settled_at_s() - began_s
        for task in member_tasks:
            task.cancel()
    # A new connection, because some of the members' connections wait for a response.
    connection = await Connection.open(address)
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
