"""CONFIG: the queues in the client's configuration. Source: AllocateMessageQueueByConfig.java."""

from collections.abc import Sequence
from typing import Final

from kafka_why.contract.rocketmq.queues import MessageQueue


class AllocateMessageQueueByConfig:
    """Ignores its arguments, so it refuses none. Without a configured list the result is None."""

    name: Final = "CONFIG"

    def __init__(self, message_queue_list: Sequence[MessageQueue] | None = None) -> None:
        self._message_queue_list = message_queue_list

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue] | None:
        """See `AllocateMessageQueueStrategy.allocate`."""
        return None if self._message_queue_list is None else list(self._message_queue_list)
