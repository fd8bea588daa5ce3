"""The records for the demo's consumers. They are numbered, so that a missing record is detected."""

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from pathlib import Path

import msgspec

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.lifetimes import BackgroundThread


class Load(BackgroundThread):
    """A thread that produces numbered records at a steady rate, to all partitions in turn, until `stop`.

    `acknowledged` has the values that the broker has acknowledged.
    """

    def __init__(
        self, client_config: ClientConfig, topic: str, partitions: int, records_per_s: float
    ) -> None:
        super().__init__("load")
        self.acknowledged: set[str] = set()
        self._topic = topic
        self._partitions = partitions
        self._pause_s = 1 / records_per_s
        with closing(kafka_clients.admin(client_config)) as admin:
            new_topic = {"num_partitions": partitions, "replication_factor": 1}
            admin.create_topics({topic: new_topic}, wait_for_metadata=True)
        self._producer = kafka_clients.producer(client_config)

    def stop(self) -> None:
        """Stop, after the broker has acknowledged all records."""
        super().stop()
        self._producer.close()

    def _run(self) -> None:
        for number in count():
            if self._stopped.wait(self._pause_s):
                return
            self._send(f"record-{number:06}", number % self._partitions)

    def _send(self, value: str, partition: int) -> None:
        future = self._producer.send(self._topic, value=value.encode(), partition=partition)
        future.add_callback(lambda _metadata: self.acknowledged.add(value))


def count_consumed(paths: Iterable[Path]) -> Counter[str]:
    """Return how often each value is in the consumers' files, without a last line that a kill cut short."""
    counts: Counter[str] = Counter()
    for path in paths:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        counts.update(msgspec.json.decode(line)["value"] for line in lines if line.endswith(b"\n"))
    return counts
