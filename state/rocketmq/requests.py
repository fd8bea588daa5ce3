"""Requests: one Struct a message about one group, tagged with RocketMQ's name for it.

They are decoded once, at the edge; the core only ever sees well-formed ones. A queue is written as
[topic, broker name, queue id]. Facts from outside the group (its configuration, a topic's queues) come as
fields. Source: RequestCode.java and the classes of remoting/.../protocol/{heartbeat,body,header}.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from assignors.rocketmq.api import MessageRequestMode
from assignors.rocketmq.message_queue import MessageQueue
from state.messages import RECORD_VERSION, Int32, Int64

# A group, topic, client id or connection; RocketMQ bounds some of them more tightly.
Name = Annotated[str, Meta(max_length=32_767)]


class MessageModel(StrEnum):
    """Whether a group shares the queues out (CLUSTERING) or each client reads all (BROADCASTING)."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeType(StrEnum):
    """How a consumer gets its messages: pull, push, pop."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class ConsumeFromWhere(StrEnum):
    """Where a client starts a queue without a stored offset; the broker only keeps it."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Struct, frozen=True):
    """One topic of a group and which of its messages are wanted; `sub_version` is a client's time in ms."""

    topic: Name
    sub_string: str = "*"
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int32, ...] = ()


class SubscriptionGroupConfig(Struct, frozen=True):
    """What the broker's configuration says of a consumer group."""

    notify_consumer_ids_changed_enable: bool = True


class Request(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every request carries: who asks, about which group, and where the answer goes.

    `connection` names the client's connection, never two of them; `client_id` need not be unique, though it
    should be.
    """

    group_id: Name
    connection: Name
    client_id: Name
    correlation_id: Name
    reply_partition: Int32
    version: int = RECORD_VERSION


class RegisterConsumer(Request, frozen=True, kw_only=True, tag="HEART_BEAT_CONSUMER"):
    """A heartbeat's part about one consumer group.

    `is_without_sub` with a `heartbeat_fingerprint` other than 0 is heartbeat V2's short form: subscriptions
    are as they were. `group_config` None: the broker knows no such group. `update_subscription` False is for
    proxies, which keep subscriptions themselves.
    """

    message_model: MessageModel
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    update_subscription: bool = True
    heartbeat_fingerprint: Int32 = 0
    is_without_sub: bool = False
    language: str = "JAVA"
    client_version: Int32 = 0
    group_config: SubscriptionGroupConfig | None = SubscriptionGroupConfig()


class RegisterProducer(Request, frozen=True, kw_only=True, tag="HEART_BEAT_PRODUCER"):
    """A heartbeat's part about one producer group."""

    heartbeat_fingerprint: Int32 = 0
    language: str = "JAVA"
    client_version: Int32 = 0


class UnregisterConsumer(Request, frozen=True, kw_only=True, tag="UNREGISTER_CLIENT_CONSUMER"):
    """This connection consumes for the group no more. `group_config` None notifies as the default does."""

    group_config: SubscriptionGroupConfig | None = None


class UnregisterProducer(Request, frozen=True, kw_only=True, tag="UNREGISTER_CLIENT_PRODUCER"):
    """This connection produces for the group no more."""


class ConnectionClosed(Struct, frozen=True, kw_only=True, tag_field="type", tag="CONNECTION_CLOSED"):
    """The connection closed, failed or was idle for too long: one record a group it was in, unanswered."""

    group_id: Name
    connection: Name
    version: int = RECORD_VERSION


class GetConsumerListByGroup(Request, frozen=True, kw_only=True, tag="GET_CONSUMER_LIST_BY_GROUP"):
    """Which client ids are in the group."""


class LockBatchMq(Request, frozen=True, kw_only=True, tag="LOCK_BATCH_MQ"):
    """Lock these queues for the client id, for orderly consumption."""

    mq_set: tuple[MessageQueue, ...]


class UnlockBatchMq(Request, frozen=True, kw_only=True, tag="UNLOCK_BATCH_MQ"):
    """Give these queues free, where the client id holds them."""

    mq_set: tuple[MessageQueue, ...]


class QueryAssignment(Request, frozen=True, kw_only=True, tag="QUERY_ASSIGNMENT"):
    """Which queues of a topic the broker gives this client. `topic_queues` None: no route is known."""

    topic: Name
    message_model: MessageModel
    strategy_name: str | None
    topic_queues: tuple[MessageQueue, ...] | None


class SetMessageRequestMode(Request, frozen=True, kw_only=True, tag="SET_MESSAGE_REQUEST_MODE"):
    """How the group's clients shall get a topic that the broker assigns."""

    topic: Name
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: Int32 = 0
    topic_exists: bool = True
    group_config: SubscriptionGroupConfig | None = SubscriptionGroupConfig()


AnyAnswered = (
    RegisterConsumer
    | RegisterProducer
    | UnregisterConsumer
    | UnregisterProducer
    | GetConsumerListByGroup
    | LockBatchMq
    | UnlockBatchMq
    | QueryAssignment
    | SetMessageRequestMode
)
AnyRequest = AnyAnswered | ConnectionClosed
