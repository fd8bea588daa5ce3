"""A RocketMQ queue, and the orders in which clients sort queues and client ids before they allocate.

Source: MessageQueue.java; RebalanceImpl.rebalanceByTopic.
"""

from collections.abc import Iterable
from typing import NamedTuple

from assignors.kafka.members import java_order


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Queues are numbered from 0; -1 means all queues of a broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return RocketMQ's own text of a queue: CONSISTENT_HASH hashes it, error texts show it."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sort by topic, broker name and number; text is ordered as by Java's String.compareTo."""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort as Java's String.compareTo does, so "CID-10" is before "CID-2"."""
    return sorted(client_ids, key=java_order)
