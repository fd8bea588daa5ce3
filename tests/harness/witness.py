"""A partition that takes part in transactions and gets no data, beside a topic that gets data."""

import uuid
from dataclasses import dataclass

from kafka_why.connections.client_config import ClientConfig
from streaming.service.transactions.pending import Marker, MarkersReader
from tests.e2e.harness import create_topic
from tests.harness.transactions import NONE, TV1, Identity, Producer, Wire, wait_for

# A marker's epoch above the epoch of the transaction that the client ends (KIP-890), by protocol.
EPOCHS_LATER = {TV1: 0, TV1 + 1: 1}


@dataclass(frozen=True)
class Witness:
    """The topics, of one partition each. `data` has 40 partitions, so that the end of a transaction that has
    all of them takes a while.
    """

    client_config: ClientConfig
    topic: str
    data: str

    @classmethod
    def on(cls, client_config: ClientConfig) -> "Witness":
        """Make the topics."""
        made = cls(client_config, f"markers-{uuid.uuid4()}", f"data-{uuid.uuid4()}")
        create_topic(client_config, made.topic, 1, {})
        create_topic(client_config, made.data, DATA_PARTITIONS, {})
        return made

    def producer(self, wire: Wire, protocol: int, timeout_ms: int = 60_000) -> Producer:
        """Return a new producer that may begin a transaction."""
        return Producer(wire, f"app-{uuid.uuid4()}", protocol).init(timeout_ms)

    def joined(self, wire: Wire, protocol: int, timeout_ms: int = 60_000) -> Producer:
        """Return a producer with an open transaction that has this partition, and no data in it."""
        producer = self.producer(wire, protocol, timeout_ms)
        assert producer.add(self.topic) == NONE
        return producer

    def markers_of(self, producer_id: int, least: int = 1) -> list[Marker]:
        """Return the markers of a producer in the partition, once there are at least so many."""
        with MarkersReader(self.client_config, self.topic) as reader:

            def read() -> list[Marker]:
                fetched = reader.fetch(0, 0, 100)
                mine = [marker for marker in fetched.markers if marker.producer_id == producer_id]
                return mine if len(mine) >= least else []

            found: list[Marker] = wait_for(read, f"{least} markers of producer {producer_id}")
        return found

    def the_marker(self, producer: Identity) -> tuple[int, bool]:
        """Return the only marker of a producer: its epoch above the producer's, and whether it is a
        COMMIT.
        """
        (marker,) = self.markers_of(producer.producer_id)
        return marker.producer_epoch - producer.epoch, marker.committed


DATA_PARTITIONS = 40
