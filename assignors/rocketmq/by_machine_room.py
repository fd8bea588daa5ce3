"""MACHINE_ROOM: only the queues of some rooms. Source: AllocateMessageQueueByMachineRoom.java."""

from collections.abc import Collection, Sequence
from typing import Final

from assignors.rocketmq.api import AbstractAllocateMessageQueueStrategy, NullPointerException
from kafka_why.contract.rocketmq.queues import MessageQueue


class AllocateMessageQueueByMachineRoom(AbstractAllocateMessageQueueStrategy):
    """Brokers are named `room@name`. Queues of rooms outside `consumeridcs` are assigned to no client.

    All clients count, whatever room they are in. Queues that do not divide evenly are taken from the *end* of
    the list: of 5 queues, 2 clients get 0, 1, 4 and 2, 3.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, consumeridcs: Collection[str] | None = None) -> None:
        self._consumeridcs = consumeridcs

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AbstractAllocateMessageQueueStrategy.share`.

        Raises NullPointerException if a broker has a room and `consumeridcs` is None.
        """
        index = client_ids.index(own_cid)
        kept = [queue for queue in queues if self._is_ours(queue.broker_name)]
        quota, extra = divmod(len(kept), len(client_ids))
        share = kept[index * quota : (index + 1) * quota]
        if index < extra:
            share.append(kept[index + quota * len(client_ids)])
        return share

    def _is_ours(self, broker_name: str) -> bool:
        # Java's split drops empty parts at the end, so "room@name@" has two parts and "room@" has one.
        parts = broker_name.rstrip("@").split("@")
        if len(parts) != 2:
            return False
        if self._consumeridcs is None:
            raise NullPointerException
        return parts[0] in self._consumeridcs
