"""What a RocketMQ strategy takes, gives and refuses.

Source: AllocateMessageQueueStrategy.java, AbstractAllocateMessageQueueStrategy.java.
"""

from collections.abc import Sequence
from typing import Protocol

from assignors.rocketmq.message_queue import MessageQueue


class IllegalArgumentException(ValueError):
    """An argument that RocketMQ refuses, in its words. A client then leaves the topic as it is."""


class NullPointerException(ValueError):
    """Something RocketMQ needs was never set; the text is empty where Java makes one of its own."""


class AllocateMessageQueueStrategy(Protocol):
    """A rule by which every client works out its own share of a topic's queues.

    A strategy is a pure function. All clients of a group call it with the same `mq_all` and `cid_all`, both
    sorted (strategies do not sort), and only with another `current_cid`; where their views differ, their
    shares overlap or leave holes until the next round.
    """

    @property
    def name(self) -> str:
        """The name a client gives in QUERY_ASSIGNMENT."""

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue] | None:
        """The queues of `current_cid`, in the order of `mq_all`; None counts as no queue.

        Raises IllegalArgumentException or NullPointerException.
        """


def check(
    current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
) -> tuple[str, Sequence[MessageQueue], Sequence[str]] | None:
    """The arguments, none of them empty; None where `current_cid` is not in `cid_all` and gets nothing.

    Raises IllegalArgumentException for the first argument that is missing or empty.
    """
    if not current_cid:
        raise IllegalArgumentException("currentCID is empty")
    if not mq_all:
        raise IllegalArgumentException("mqAll is null or mqAll empty")
    if not cid_all:
        raise IllegalArgumentException("cidAll is null or cidAll empty")
    if current_cid not in cid_all:
        return None
    return current_cid, mq_all, cid_all
