"""Measure what `observe`'s looks at the brokers cost them: processor time of an embedded broker's JVM.

`python -m bench.observe_looks --groups 5000 --rebalancing 50`. It makes so many groups with a committed
offset each, and looks at the broker every second for a while; then the same with members that join and wait
for others. The figures are differences to the same time without looks.
"""

import argparse
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from bench.report import say
from bench.systems import cpu_s
from connections import kafka_clients
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from records.reader import TopicReader
from streaming.observing.options import DEFAULT_POLL_INTERVAL_MS
from streaming.observing.rebalance_poller import RebalancePoller
from streaming.service.topics import SIGHTINGS_TOPIC, find_topic, prepare

SIGHTINGS = "bench-sightings"
TOPIC = "orders"
# A group stays in PreparingRebalance for so long after its first member has joined.
_DELAY_MS = 600_000
_SOURCE = "__consumer_offsets"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=5_000)
    parser.add_argument("--rebalancing", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    delay = {"group.initial.rebalance.delay.ms": str(_DELAY_MS)}
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder), overrides=delay) as broker:
        prepare(broker.client_config, {TOPIC: (1, {}), SIGHTINGS: SIGHTINGS_TOPIC}, {})
        say(f"making {given.groups} groups")
        make_groups(broker.client_config, given.groups)
        for rebalancing in (0, given.rebalancing):
            cost(broker, rebalancing, given.seconds)


def make_groups(client_config: ClientConfig, number: int) -> None:
    """Commit an offset in each group."""
    admin = kafka_clients.librdkafka_admin(client_config)
    at = [TopicPartition(TOPIC, 0, 0)]
    for first in range(0, number, 100):
        asked = [
            future
            for n in range(first, min(first + 100, number))
            for future in admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(f"at-rest-{n}", at)]
            ).values()
        ]
        for future in asked:
            future.result()


def join(servers: str, number: int) -> None:
    """Join so many groups, and wait in each, until this process is killed."""
    members = []
    for n in range(number):
        member = Consumer({"bootstrap.servers": servers, "group.id": f"rebalancing-{n}"})
        member.subscribe([TOPIC])
        member.poll(0.1)
        members.append(member)
    threading.Event().wait()


def cost(broker: EmbeddedBroker, rebalancing: int, seconds: float) -> None:
    """Say what a look costs while so many groups are rebalancing."""
    assert broker.pid is not None
    source = find_topic(broker.client_config, _SOURCE)
    assert source is not None
    poller = RebalancePoller(
        broker.client_config,
        SIGHTINGS,
        partitions=source.partitions[_SOURCE],
        interval_ms=DEFAULT_POLL_INTERVAL_MS,
    )
    poller.start()
    time.sleep(5)  # its connections are made, and it has looked
    members = multiprocessing.get_context("spawn").Process(
        target=join, args=(broker.bootstrap_servers, rebalancing)
    )
    members.start()
    time.sleep(seconds)  # until all have joined
    before, with_looks_s = sightings(broker.client_config), spent_s(broker.pid, seconds)
    written = sightings(broker.client_config) - before
    poller.stop()
    without_s = spent_s(broker.pid, seconds)
    members.kill()
    members.join()
    looks = seconds * 1000 / DEFAULT_POLL_INTERVAL_MS
    look_ms = (with_looks_s - without_s) / looks * 1000
    say(
        f"{rebalancing} groups rebalancing: a look costs the broker {look_ms:.1f} ms of processor time; "
        f"{written / looks:.0f} sightings a look"
    )


def spent_s(pid: int, seconds: float) -> float:
    """The processor time of a process in the next seconds."""
    began_s = cpu_s(pid)
    time.sleep(seconds)
    return cpu_s(pid) - began_s


def sightings(client_config: ClientConfig) -> int:
    """The number of records of the sightings topic."""
    with TopicReader(client_config) as reader:
        return sum(reader.ends(reader.partitions_of(SIGHTINGS)).values())


if __name__ == "__main__":
    main()
