"""Producers of numbered records."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from confluent_kafka import KafkaException, Message, Producer

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from tests.shared.judge import Place, Written

DELIVERY_TIMEOUT_MS = 120_000
_MAX_BYTES = 1_000_000


class Load:
    """Writes a record to each partition in turn, with acks=all, until `stop`."""

    def __init__(self, client_config: ClientConfig, partitions: Mapping[str, int], pause_s: float) -> None:
        self.partitions = dict(partitions)
        """By topic."""
        self.lives = dict.fromkeys(partitions, 1)
        """How many topics had this name."""
        self.written: dict[int, Written] = {}
        """What the brokers have acknowledged."""
        self._config = client_config
        self._pause_s = pause_s
        self._producers = {topic: self._producer() for topic in partitions}
        self._lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write no more, and wait until the brokers have all."""
        self._is_stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        for producer in self._producers.values():
            producer.flush(DELIVERY_TIMEOUT_MS / 1000)

    def replace(self, topic: str, partitions: int, make: Callable[[], None]) -> None:
        """Write no record to the topic while `make` deletes it and makes it again."""
        with self._lock:
            self._producers.pop(topic).flush(DELIVERY_TIMEOUT_MS / 1000)
        make()
        with self._lock:
            self.lives[topic] += 1
            self.partitions[topic] = partitions
            self._producers[topic] = self._producer()

    def grow(self, topic: str) -> None:
        """Write to one partition more, which the topic has got."""
        with self._lock:
            self._producers.pop(topic).flush(DELIVERY_TIMEOUT_MS / 1000)
            self.partitions[topic] += 1
            self._producers[topic] = self._producer()  # it asks for the topic's partitions at once

    def _producer(self) -> Producer:
        return kafka_clients.request_producer(
            self._config, timeout_ms=DELIVERY_TIMEOUT_MS, max_request_bytes=_MAX_BYTES
        )

    def _run(self) -> None:
        number = 0
        while not self._is_stopping.is_set():
            with self._lock:
                for topic, producer in self._producers.items():
                    for partition in range(self.partitions[topic]):
                        number += 1
                        place = Place(topic, self.lives[topic], partition)
                        # A broker may not know a new partition yet. Then the record is not written.
                        with suppress(KafkaException):
                            producer.produce(
                                topic,
                                str(number),
                                partition=partition,
                                on_delivery=self._told_of(number, place),
                            )
                    producer.poll(0)
            self._is_stopping.wait(self._pause_s)

    def _told_of(self, number: int, place: Place) -> Callable[[object, Message], None]:
        def told(error: object, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                self.written[number] = Written(place, offset, time.monotonic_ns())

        return told
