"""Measure `observe`: how fast it reads commits, and the memory and disk space of many committed offsets.

Records of commits are written to `__consumer_offsets` of an embedded broker (50 partitions), in the format of
its coordinator. The first backlog has one commit for each partition of each group. The second has commits for
random ones of these, and so shows the cost of a large state. A new `group-coordinator observe` reads each
backlog. Wall time and processor time are measured from its line "ready:" until its last batch is committed.
"""

import argparse
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.memory import MIB, memory_bytes, parts_of
from bench.report import say
from bench.systems import own_cpu_s, size_of
from checkpoints.spark_logs import last_batch, planned_ends
from cli.processes.child import Child, Children
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC as SOURCE
from kafka_why.local_files import LocalFiles
from kafka_why.topic_reader import TopicReader

SOURCE_PARTITIONS = 50
START_TIMEOUT_S = 180.0
TOPIC = "orders"
# The only client id that may write to a broker's internal topics.
INTERNAL_CLIENT = "__admin_client"
_POLL_S = 0.1
_QUEUED_RECORDS = 100_000


@dataclass(frozen=True)
class Backlog:
    """The cost of one backlog: wall time, and processor time of the observer's processes and the broker."""

    records: int
    batches: int
    wall_s: float
    processor_s: dict[str, float]

    def lines(self) -> Iterator[str]:
        """Yield the rows of the table."""
        yield f"  {'records':<44}{self.records:>12,}"
        yield f"  {'batches':<44}{self.batches:>12,}"
        yield f"  {'seconds':<44}{self.wall_s:>12.1f}"
        yield f"  {'records a second':<44}{self.records / self.wall_s:>12,.0f}"
        for part, seconds in self.processor_s.items():
            yield f"  {f'processor time of a record, {part}, us':<44}{seconds / self.records * 1e6:>12.1f}"


def main() -> None:
    """Write and observe the backlogs, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.observing", description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--offsets", type=int, default=100, help="committed offsets of each group")
    parser.add_argument("--more", type=int, default=1_000_000, help="commits of the second backlog; 0: none")
    parser.add_argument("--option", action="append", default=[], help="of observe, as --option=--shards=8")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    settings = {"offsets.topic.num.partitions": str(SOURCE_PARTITIONS)}
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name,
        EmbeddedBroker(Path(name) / "broker", overrides=settings) as broker,
    ):
        bench = ObserverBench(broker, Path(name), args.option)
        groups = [f"group-{number:06}" for number in range(args.groups)]
        each_once = ((group, n) for group in groups for n in range(args.offsets))
        print(bench.measure_backlog("a backlog of new offsets", each_once), flush=True)
        if args.more:
            dice = random.Random(1)
            committed_again = ((dice.choice(groups), dice.randrange(args.offsets)) for _ in range(args.more))
            print(bench.measure_backlog("a backlog of known offsets", committed_again), flush=True)


class ObserverBench:
    """A broker whose offsets topic an observer reads, and the observer's data folder."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, options: list[str]) -> None:
        self._broker = broker
        self._servers = broker.bootstrap_servers
        self._folder = folder
        self._options = options
        self._starts = 0
        self._value = self._first_commit()

    def _first_commit(self) -> bytes:
        """Commit an offset, which creates the offsets topic. Return the value of the commit's record."""
        with closing(kafka_clients.admin(self._broker.client_config)) as admin:
            new_topic = {"num_partitions": 1, "replication_factor": 1, "configs": {}}
            admin.create_topics({TOPIC: new_topic}, wait_for_metadata=True)
        with closing(Consumer({"bootstrap.servers": self._servers, "group.id": "first"})) as consumer:
            _commit(consumer, TopicPartition(TOPIC, 0, 1))
        with TopicReader(self._broker.client_config) as reader:
            value_of = {record.key: record.value for record in reader.read_all(SOURCE)}
        value: bytes = value_of[key_of("first", 0)]
        return value

    def measure_backlog(self, name: str, commits: Iterable[tuple[str, int]]) -> str:
        """Write these commits, let an observer read them, and return the table."""
        say(f"{name}: writing it")
        ends, written = self._write(commits)
        say(f"{name}: {written:,} records; starting the observer")
        with Children(self._folder) as children:
            child = self._start(children)
            backlog = self._wait_until_read(child, ends, written)
            memory = {part: memory_bytes(pids) / MIB for part, pids in parts_of(child.pid).items()}
            child.stop()
        lines = [name, *backlog.lines()]
        lines += [f"  {f'memory, {part}, MiB':<44}{mib:>12.0f}" for part, mib in memory.items() if mib]
        state = sum(size_of(path) for path in (self._data / "spark" / "state").rglob("*")) / MIB
        lines.append(f"  {'state on disk, with the last 100 batches, MiB':<44}{state:>12.0f}")
        return "\n".join(lines)

    @property
    def _data(self) -> Path:
        return self._folder / "data" / "observer"

    def _write(self, commits: Iterable[tuple[str, int]]) -> tuple[dict[int, int], int]:
        """Write commits of (group, partition). Return the topic's log ends, and the number of commits."""
        settings = {
            "bootstrap.servers": self._servers,
            "client.id": INTERNAL_CLIENT,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2 * _QUEUED_RECORDS,
        }
        # The value is the version (2 bytes), the offset (8), and the rest. Each record has another offset.
        producer, written, prefix, suffix = Producer(settings), 0, self._value[:2], self._value[10:]
        remaining = iter(commits)
        while chunk := list(islice(remaining, _QUEUED_RECORDS)):
            for group, number in chunk:
                written += 1
                value = prefix + written.to_bytes(8) + suffix
                producer.produce(SOURCE, value, key_of(group, number), coordinator_partition(group))
            producer.flush()
        with closing(Consumer({"bootstrap.servers": self._servers, "group.id": "ends"})) as consumer:
            partitions = [TopicPartition(SOURCE, p) for p in range(SOURCE_PARTITIONS)]
            return {p.partition: consumer.get_watermark_offsets(p)[1] for p in partitions}, written

    def _start(self, children: Children) -> Child:
        self._starts += 1
        arguments = ["--bootstrap-servers", self._servers, "--data-dir", str(self._folder / "data")]
        child = children.start(f"observe-{self._starts}", "observe", *arguments, *self._options)
        child.wait_for_line(lambda line: line.startswith("ready:"), START_TIMEOUT_S)
        return child

    def _wait_until_read(self, child: Child, ends: dict[int, int], records: int) -> Backlog:
        """Wait until the observer has read up to `ends`, and repeat its progress lines."""
        files, began_s, first_batch = LocalFiles(self._data), time.monotonic(), None
        used_before = self._processor_s(child)
        last_shown = ""
        while True:
            batch = last_batch(files, "commits")
            first_batch = batch if first_batch is None else first_batch
            if batch >= 0 and planned_ends(files, batch).get(SOURCE) == ends:
                break
            last_shown = self._report_progress(child, last_shown)
            if not child.is_running:
                raise child.failure("it ended")
            time.sleep(_POLL_S)
        wall_s = time.monotonic() - began_s
        used = {
            part: seconds - used_before.get(part, 0.0) for part, seconds in self._processor_s(child).items()
        }
        return Backlog(records, batch - first_batch, wall_s, used)

    def _processor_s(self, child: Child) -> dict[str, float]:
        """Return the processor time so far of each part of the observer, and of the broker."""
        used = {}
        for part, pids in parts_of(child.pid).items():
            if pids:
                used[part] = sum(own_cpu_s(pid) for pid in pids)
        assert self._broker.pid is not None
        return used | {"broker": own_cpu_s(self._broker.pid)}

    def _report_progress(self, child: Child, last_shown: str) -> str:
        """Print the newest progress line of the observer if it is new. Return the last one printed."""
        lines = [line for line in child.log_path.read_text().splitlines() if " to read" in line]
        if lines and lines[-1] != last_shown:
            say(f"  {lines[-1]}")
            return lines[-1]
        return last_shown


def _commit(consumer: Consumer, offset: TopicPartition) -> None:
    """Commit as soon as the coordinator has created its topic."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            consumer.commit(offsets=[offset], asynchronous=False)
            return
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)


@cache
def coordinator_partition(group: str) -> int:
    """Return the partition of the offsets topic for a group with an ASCII id.

    Source: GroupCoordinatorService.partitionFor.
    """
    number = 0
    for character in group:  # String.hashCode
        number = (31 * number + ord(character)) & 0xFFFFFFFF
    signed = number - (number >> 31 << 32)
    return abs(signed) % SOURCE_PARTITIONS


def key_of(group: str, partition: int) -> bytes:
    """Return the key of a commit: OffsetCommitKey.json, version 1."""
    group_id, topic = group.encode(), TOPIC.encode()
    return struct.pack(
        f">hh{len(group_id)}sh{len(topic)}si", 1, len(group_id), group_id, len(topic), topic, partition
    )


if __name__ == "__main__":
    main()
