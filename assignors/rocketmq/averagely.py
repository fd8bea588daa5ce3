"""AVG and AVG_BY_CIRCLE: shares whose sizes differ by one at most.

Two clients of one id both take the place where the id stands first, so the other place's share is read by
nobody. Source: AllocateMessageQueueAveragely.java, AllocateMessageQueueAveragelyByCircle.java.
"""

from collections.abc import Sequence
from typing import Final

from assignors.rocketmq.api import check
from assignors.rocketmq.message_queue import MessageQueue


class AllocateMessageQueueAveragely:
    """Each client gets one run of queues, the first ones a longer run; RocketMQ's default."""

    name: Final = "AVG"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """See `AllocateMessageQueueStrategy.allocate`."""
        checked = check(current_cid, mq_all, cid_all)
        if checked is None:
            return []
        own_cid, queues, client_ids = checked
        index = client_ids.index(own_cid)
        quota, clients_with_extra = divmod(len(queues), len(client_ids))
        start = index * quota + min(index, clients_with_extra)
        return list(queues[start : start + quota + (index < clients_with_extra)])


class AllocateMessageQueueAveragelyByCircle:
    """The queues are dealt out one by one around the circle of clients."""

    name: Final = "AVG_BY_CIRCLE"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """See `AllocateMessageQueueStrategy.allocate`."""
        checked = check(current_cid, mq_all, cid_all)
        if checked is None:
            return []
        own_cid, queues, client_ids = checked
        return list(queues[client_ids.index(own_cid) :: len(client_ids)])
