"""What a RocketMQ strategy takes, gives and refuses.

Source: AllocateMessageQueueStrategy.java, AbstractAllocateMessageQueueStrategy.java.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from assignors.rocketmq.message_queue import MessageQueue


class IllegalArgumentException(ValueError):
    """An argument that RocketMQ refuses, in its words. A client then leaves the topic as it is."""


class NullPointerException(ValueError):
    """Something RocketMQ needs was never set; the text is empty where Java makes one of its own."""


class MessageRequestMode(StrEnum):
    """How clients get the messages of queues that the broker assigns."""

    PULL = "PULL"
    POP = "POP"


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


class AbstractAllocateMessageQueueStrategy(ABC):
    """A strategy that is asked for the share of a client of the group only, with no argument empty."""

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """See `AllocateMessageQueueStrategy.allocate`; nothing for a client that is not in `cid_all`."""
        own_cid, queues, client_ids = check(current_cid, mq_all, cid_all)
        return self.share(consumer_group, own_cid, queues, client_ids) if own_cid in client_ids else []

    @abstractmethod
    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of `own_cid`, which is in `client_ids`."""


def check(
    current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
) -> tuple[str, Sequence[MessageQueue], Sequence[str]]:
    """The arguments, none of them empty.

    Raises IllegalArgumentException for the first argument that is missing or empty.
    """
    if not current_cid:
        raise IllegalArgumentException("currentCID is empty")
    if not mq_all:
        raise IllegalArgumentException("mqAll is null or mqAll empty")
    if not cid_all:
        raise IllegalArgumentException("cidAll is null or cidAll empty")
    return current_cid, mq_all, cid_all
