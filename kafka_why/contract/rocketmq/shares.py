"""The two strategies by which RocketMQ's clients usually divide a topic's queues, and the orders in which
they sort queues and client ids before.

Source: MessageQueue.java, RebalanceImpl.rebalanceByTopic, AllocateMessageQueueAveragely.java,
AllocateMessageQueueAveragelyByCircle.java.
"""

from collections.abc import Iterable, Sequence

from kafka_why.contract.protocols.subscriptions import java_order
from kafka_why.contract.rocketmq.queues import MessageQueue


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sort by topic, broker name and number; text is ordered as by Java's String.compareTo."""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort as Java's String.compareTo does, so "CID-10" is before "CID-2"."""
    return sorted(client_ids, key=java_order)


def averagely(queues: Sequence[MessageQueue], client_ids: Sequence[str], own_cid: str) -> list[MessageQueue]:
    """Return one client's run of the queues; the first clients get one queue more. Both lists are sorted."""
    index = client_ids.index(own_cid)
    quota, clients_with_extra = divmod(len(queues), len(client_ids))
    start = index * quota + min(index, clients_with_extra)
    return list(queues[start : start + quota + (index < clients_with_extra)])


def averagely_by_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_cid: str
) -> list[MessageQueue]:
    """Return one client's queues: every n-th for n client ids. Both lists are sorted."""
    return list(queues[client_ids.index(own_cid) :: len(client_ids)])
