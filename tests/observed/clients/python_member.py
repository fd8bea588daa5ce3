"""A member with librdkafka or kafka-python: see `tests.observed.clients`."""

import argparse
import queue
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError as PythonKafkaError

_POLL_S = 0.2
_METADATA_MS = 1_000


def say(event: str, *words: object) -> None:
    """Write an event."""
    sys.stdout.write(" ".join([str(time.time_ns() // 1_000_000), event, *map(str, words)]) + "\n")
    sys.stdout.flush()


def say_partitions(event: str, partitions: Iterable[Any]) -> None:
    """Write that partitions came or went."""
    say(event, *sorted(f"{it.topic}:{it.partition}" for it in partitions))


class Librdkafka:
    """A consumer of confluent-kafka."""

    def __init__(self, options: argparse.Namespace, settings: dict[str, str]) -> None:
        instance = {"group.instance.id": options.instance_id} if options.instance_id else {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": options.servers,
                "group.id": options.group,
                "client.id": options.client_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": _METADATA_MS,
                **instance,
                **settings,
            }
        )

    def subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(
            topics,
            on_assign=lambda _, partitions: say_partitions("came", partitions),
            on_revoke=lambda _, partitions: say_partitions("went", partitions),
            on_lost=lambda _, partitions: say_partitions("went", partitions),
        )

    def poll(self) -> None:
        record = self._consumer.poll(_POLL_S)
        error = None if record is None else record.error()
        if error is not None and error.code() == KafkaError._FATAL:
            raise KafkaException(error)

    def commit(self) -> bool:
        """Commit the positions. Return True if there were any."""
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as raised:
            if raised.args[0].code() == KafkaError._NO_OFFSET:
                return False
            raise
        return True

    def close(self) -> None:
        self._consumer.close()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python ships no types
    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        say_partitions("came", assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        say_partitions("went", revoked)


class KafkaPython:
    def __init__(self, options: argparse.Namespace, settings: dict[str, str]) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=options.servers,
            group_id=options.group,
            client_id=options.client_id,
            group_instance_id=options.instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=_METADATA_MS,
            partition_assignment_strategy=[RangePartitionAssignor()],
            **{name: int(value) for name, value in settings.items()},
        )
        self._generation = -1

    def subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(topics=topics, listener=_Listener())

    def poll(self) -> None:
        # A JoinGroup that is answered between two polls is sent again: see `tests.e2e.gateway_clients`.
        self._consumer.poll(timeout_ms=1_000)
        generation = self._consumer._coordinator._generation.generation_id
        if generation != self._generation:
            self._generation = generation
            say("generation", generation)

    def commit(self) -> bool:
        self._consumer.commit()
        return True

    def close(self) -> None:
        self._consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=["librdkafka", "kafka-python"], required=True)
    for name in ("servers", "group", "client-id", "topics"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--instance-id")
    parser.add_argument("--setting", action="append", default=[])
    options = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in options.setting)
    member = (
        Librdkafka(options, settings) if options.library == "librdkafka" else KafkaPython(options, settings)
    )
    commands: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=[commands], daemon=True).start()
    member.subscribe(options.topics.split(","))
    try:
        _run(member, commands)
        member.close()
    except (KafkaException, PythonKafkaError) as error:
        say("ended", type(error).__name__)
        return
    say("ended")


def _run(member: Librdkafka | KafkaPython, commands: "queue.Queue[str]") -> None:
    """Poll, and do what is asked between two polls, until the member has to leave."""
    while True:
        member.poll()
        if commands.empty():
            continue
        command, _, words = commands.get().partition(" ")
        if command == "leave":
            return
        if command == "subscribe":
            member.subscribe(words.split(","))
        elif command == "commit" and member.commit():
            say("committed")


def _read(commands: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        commands.put(line.strip())
    commands.put("leave")


if __name__ == "__main__":
    main()
