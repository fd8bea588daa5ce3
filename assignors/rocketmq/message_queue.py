"""A RocketMQ queue, and the orders in which clients sort queues and client ids before they allocate.

Source: MessageQueue.java; RebalanceImpl.rebalanceByTopic.
"""

from collections.abc import Iterable

from kafka_why.contract.protocols.java_order import java_order
from kafka_why.contract.rocketmq.queues import MessageQueue


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sort by topic, broker name and number; text is ordered as by Java's String.compareTo."""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort as Java's String.compareTo does, so "CID-10" is before "CID-2"."""
    return sorted(client_ids, key=java_order)
