"""AVG and AVG_BY_CIRCLE: shares whose sizes differ by at most one.

Two clients with the same id both take the place where the id stands first, so neither consumes the share of
the other place. Source: AllocateMessageQueueAveragely.java, AllocateMessageQueueAveragelyByCircle.java.
"""

from collections.abc import Sequence
from typing import Final

from assignors.rocketmq.api import AbstractAllocateMessageQueueStrategy
from kafka_why.contract.rocketmq.queues import MessageQueue


class AllocateMessageQueueAveragely(AbstractAllocateMessageQueueStrategy):
    """Each client gets one run of queues; the first clients get a longer run. RocketMQ's default."""

    name: Final = "AVG"

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        index = client_ids.index(own_cid)
        quota, clients_with_extra = divmod(len(queues), len(client_ids))
        start = index * quota + min(index, clients_with_extra)
        return list(queues[start : start + quota + (index < clients_with_extra)])


class AllocateMessageQueueAveragelyByCircle(AbstractAllocateMessageQueueStrategy):
    """The clients, in a circle, get the queues one by one."""

    name: Final = "AVG_BY_CIRCLE"

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return list(queues[client_ids.index(own_cid) :: len(client_ids)])
