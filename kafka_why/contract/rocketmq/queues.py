"""RocketMQ's queues, and the strategies by which clients divide them.

Source: MessageQueue.java, RebalanceImpl.rebalanceByTopic, AllocateMessageQueueAveragely.java,
AllocateMessageQueueAveragelyByCircle.java.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from kafka_why.contract.protocols.subscriptions import java_order


class MessageRequestMode(StrEnum):
    """The way in which clients get the messages of queues that the broker assigns."""

    PULL = "PULL"
    POP = "POP"


class MessageQueue(NamedTuple):
    """A queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int  # from 0; -1 means all queues of a broker

    def __str__(self) -> str:
        """Return RocketMQ's own text of a queue, which CONSISTENT_HASH hashes and error texts contain."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"
"""The prefix of the names of retry topics. Clients also subscribe to their group's retry topic. Source:
MixAll.java.
"""


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sort by topic, broker name and number, with strings in the order of Java's String.compareTo."""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort in the order of Java's String.compareTo, in which "CID-10" is before "CID-2"."""
    return sorted(client_ids, key=java_order)


def averagely(queues: Sequence[MessageQueue], client_ids: Sequence[str], own_cid: str) -> list[MessageQueue]:
    """Return the consecutive queues of the client `own_cid`. The first clients get one queue more.

    `queues` and `client_ids` are sorted.
    """
    index = client_ids.index(own_cid)
    quota, clients_with_extra = divmod(len(queues), len(client_ids))
    start = index * quota + min(index, clients_with_extra)
    return list(queues[start : start + quota + (index < clients_with_extra)])


def averagely_by_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_cid: str
) -> list[MessageQueue]:
    """Return every n-th queue, where n is the number of clients, for the client `own_cid`.

    `queues` and `client_ids` are sorted.
    """
    return list(queues[client_ids.index(own_cid) :: len(client_ids)])
