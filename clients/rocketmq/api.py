"""What a consumer is told to be, and whom it asks."""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from assignors.rocketmq.api import AllocateMessageQueueStrategy
from assignors.rocketmq.averagely import AllocateMessageQueueAveragely
from assignors.rocketmq.message_queue import MessageQueue
from clients.rocketmq.process_queue import PullThresholds
from state.rocketmq.requests import ConsumeFromWhere, MessageModel
from state.rocketmq.split import HeartbeatData

RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"

# Is told of a topic whose queues changed: all queues, and this client's.
MessageQueueListener = Callable[[str, Set[MessageQueue], Set[MessageQueue]], None]


def no_listener(topic: str, mq_all: Set[MessageQueue], mq_divided: Set[MessageQueue]) -> None:
    """Hears nothing."""


@dataclass(slots=True)
class ConsumerConfig:
    """One consumer group of a client. `subscriptions` goes from topic to filter."""

    group_id: str
    subscriptions: dict[str, str]
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int = 0
    strategy: AllocateMessageQueueStrategy = field(default_factory=AllocateMessageQueueAveragely)
    orderly: bool = False
    thresholds: PullThresholds = field(default_factory=PullThresholds)
    listener: MessageQueueListener = no_listener


class Broker(Protocol):
    """What a client asks of brokers and of routes. Nothing raises: where there is no answer, it says so."""

    def heartbeat(self, data: HeartbeatData) -> bool:
        """Send a heartbeat for all groups; whether every part of it was taken."""

    def unregister(self, group_id: str) -> None:
        """This connection consumes for the group no more."""

    def topic_queues(self, topic: str) -> Collection[MessageQueue] | None:
        """The queues of a topic, None where no route to it is known."""

    def consumer_ids(self, group_id: str) -> list[str] | None:
        """The client ids of a group, None where the broker answers with an error or not at all."""

    def lock(self, group_id: str, queues: Collection[MessageQueue]) -> Set[MessageQueue]:
        """Lock queues; those that are this client's now."""

    def unlock(self, group_id: str, queues: Collection[MessageQueue]) -> None:
        """Give locks back, one-way."""

    def start_offsets(
        self, config: ConsumerConfig, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Where to begin, by what is stored and else by `consume_from_where`; a queue of which that cannot be
        told is left out, and owned by nobody until the next round.
        """

    def persist(self, config: ConsumerConfig, offsets: Mapping[MessageQueue, int]) -> None:
        """Store where to go on."""
