"""The records for the demo's consumers. They are numbered, so that a missing record is detected."""

import threading
from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import msgspec

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig


class Load:
    """A thread that produces numbered records at a steady rate, to all partitions in turn, until `stop`.

    `acknowledged` has the values of the records that the broker has acknowledged.
    """

    def __init__(
        self, client_config: ClientConfig, topic: str, partitions: int, records_per_s: float
    ) -> None:
        self.acknowledged: set[str] = set()
        self._topic = topic
        self._partitions = partitions
        self._pause_s = 1 / records_per_s
        self._stopping = threading.Event()
        _create_topic(client_config, topic, partitions)
        self._producer = kafka_clients.producer(client_config)
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until the broker has acknowledged all records."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        for number in count():
            if self._stopping.wait(self._pause_s):
                return
            self._send(f"record-{number:06}", number % self._partitions)

    def _send(self, value: str, partition: int) -> None:
        sent = self._producer.send(self._topic, value=value.encode(), partition=partition)
        sent.add_callback(lambda _metadata: self.acknowledged.add(value))


def consumed(paths: Iterable[Path]) -> Counter[str]:
    """Count each record's value in the consumers' files. A line cut short by a kill does not count."""
    counts: Counter[str] = Counter()
    for path in paths:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        counts.update(msgspec.json.decode(line)["value"] for line in lines if line.endswith(b"\n"))
    return counts


def _create_topic(client_config: ClientConfig, topic: str, partitions: int) -> None:
    admin = kafka_clients.admin(client_config)
    try:
        options = {"num_partitions": partitions, "replication_factor": 1}
        admin.create_topics({topic: options}, wait_for_metadata=True)
    finally:
        admin.close()
