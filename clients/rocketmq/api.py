"""A consumer's configuration, and the interface of its broker."""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from assignors.rocketmq.api import AllocateMessageQueueStrategy
from assignors.rocketmq.strategies import AllocateMessageQueueAveragely
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import ConsumeFromWhere, MessageModel
from state.rocketmq.split import HeartbeatData

RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"

# Called when a topic's queues changed, with the topic, all its queues, and this client's share of them.
MessageQueueListener = Callable[[str, Set[MessageQueue], Set[MessageQueue]], None]


def no_listener(topic: str, mq_all: Set[MessageQueue], mq_divided: Set[MessageQueue]) -> None:
    """Ignore the change."""


@dataclass(slots=True)
class ConsumerConfig:
    """The configuration of one consumer group of a client.

    `subscriptions` maps topics to filters. `orderly` means that the client locks each queue before it
    consumes it.
    """

    group_id: str
    subscriptions: dict[str, str]
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    strategy: AllocateMessageQueueStrategy = field(default_factory=AllocateMessageQueueAveragely)
    orderly: bool = False
    listener: MessageQueueListener = no_listener


class Broker(Protocol):
    """A client's requests to brokers, and its look-ups of routes.

    No method raises; each has a return value for a missing answer.
    """

    def heartbeat(self, data: HeartbeatData) -> bool:
        """Send a heartbeat for all groups. Returns whether the broker accepted every part of it."""

    def unregister(self, group_id: str) -> None:
        """Unregister this connection from the group."""

    def topic_queues(self, topic: str) -> Collection[MessageQueue] | None:
        """Return the queues of a topic, or None if no route to it is known."""

    def consumer_ids(self, group_id: str) -> list[str] | None:
        """Return the client ids of a group, or None on an error or without an answer."""

    def lock(self, group_id: str, queues: Collection[MessageQueue]) -> Set[MessageQueue]:
        """Lock queues. Returns the queues whose lock this client has now."""

    def unlock(self, group_id: str, queues: Collection[MessageQueue]) -> None:
        """Release locks, without waiting for the answer."""

    def start_offsets(
        self, config: ConsumerConfig, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Return the start offset of each queue: the stored offset, or else that of `consume_from_where`.

        A queue whose offset cannot be found is left out; no client has it until the next round.
        """

    def persist(self, config: ConsumerConfig, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the offsets at which the next owner continues."""
