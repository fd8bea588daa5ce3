"""The base of RocketMQ's allocation strategies.

Source: AllocateMessageQueueStrategy.java, AbstractAllocateMessageQueueStrategy.java.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kafka_why.contract.rocketmq.requests import MessageQueue


class IllegalArgumentException(ValueError):
    """An argument that RocketMQ refuses, with RocketMQ's text. The client then keeps its queues of the
    topic.
    """


class AllocateMessageQueueStrategy(ABC):
    """A rule by which every client computes its own share of a topic's queues.

    A strategy is a pure function. All clients of a group call it with the same `mq_all` and `cid_all`, both
    sorted, and with their own `current_cid`. If the clients' views differ, their shares overlap or leave
    queues unassigned until the next round.
    """

    name: str
    """The strategy's name in a client's QUERY_ASSIGNMENT request."""

    def allocate(
        self,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return the queues of `current_cid` in the order of `mq_all`. A client that is not in `cid_all` gets
        no queue. Raises IllegalArgumentException.
        """
        own_cid, queues, client_ids = check(current_cid, mq_all, cid_all)
        return self.share(own_cid, queues, client_ids) if own_cid in client_ids else []

    @abstractmethod
    def share(
        self, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of `own_cid`, which is in `client_ids`."""


def check(
    current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
) -> tuple[str, Sequence[MessageQueue], Sequence[str]]:
    """Return the arguments, none of them empty.

    Raises IllegalArgumentException for the first argument that is missing or empty.
    """
    if not current_cid:
        raise IllegalArgumentException("currentCID is empty")
    if not mq_all:
        raise IllegalArgumentException("mqAll is null or mqAll empty")
    if not cid_all:
        raise IllegalArgumentException("cidAll is null or cidAll empty")
    return current_cid, mq_all, cid_all
