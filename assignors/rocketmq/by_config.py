"""CONFIG: the queues a client was configured with. Source: AllocateMessageQueueByConfig.java."""

from collections.abc import Sequence
from typing import Final

from assignors.rocketmq.message_queue import MessageQueue


class AllocateMessageQueueByConfig:
    """Looks at no argument, so it refuses none. Without a configured list the answer is None."""

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
