"""Requests: one Struct for each message about one group, tagged with RocketMQ's name of the message.

Requests are decoded once, at the edge, so the core receives only well-formed requests. A queue is [topic,
broker name, queue id]. Fields also have data from outside the group: its configuration, and a topic's queues.
Source: RequestCode.java and the classes of remoting/.../protocol/{heartbeat,body,header}.
"""

from enum import StrEnum
from typing import Annotated, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from kafka_why.contract.messages import RECORD_VERSION, A, Answered, Int32, Int64
from kafka_why.contract.rocketmq.queues import MessageQueue, MessageRequestMode
from kafka_why.contract.rocketmq.responses import (
    ConsumerListResponse,
    LockBatchMqResponse,
    QueryAssignmentResponse,
    RegisterResponse,
    SetMessageRequestModeResponse,
    UnlockBatchMqResponse,
    UnregisterResponse,
)

# A group, topic, client id or connection; RocketMQ bounds some of them more tightly.
Name = Annotated[str, Meta(max_length=32_767)]


class MessageModel(StrEnum):
    """The division of queues. CLUSTERING: the clients divide the queues. BROADCASTING: each client reads all
    queues.
    """

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeType(StrEnum):
    """The way in which a consumer gets its messages: pull, push or pop."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class ConsumeFromWhere(StrEnum):
    """The position from which a client reads a queue without a stored offset. The broker only stores the
    value.
    """

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Struct, frozen=True):
    """A topic of a subscription, with its filter."""

    topic: Name
    sub_string: str = "*"
    sub_version: Int64 = 0  # the client's time in ms
    expression_type: str = "TAG"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int32, ...] = ()


class SubscriptionGroupConfig(Struct, frozen=True):
    """The broker's configuration of a consumer group."""

    notify_consumer_ids_changed_enable: bool = True


class Request(Answered[A], frozen=True, kw_only=True, tag_field="type"):
    """The fields of every request: the client, the group, and the address of the answer."""

    group_id: Name
    connection: Name  # its unique id
    client_id: Name  # should be unique, but clients may have the same
    correlation_id: Name
    reply_partition: Int32
    # To which the client sent the request, as `name/id` (0 is the master); "" if there is only one. Each
    # broker has its own table of consumers.
    broker: Name = ""
    waits_for_views: bool | UnsetType = UNSET  # as in `kafka_why.contract.messages.Request`
    version: int = RECORD_VERSION


class RegisterConsumer(Request[RegisterResponse], frozen=True, kw_only=True, tag="HEART_BEAT_CONSUMER"):
    """The part of a heartbeat for one consumer group."""

    message_model: MessageModel
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    update_subscription: bool = True  # False for proxies, which store the subscriptions themselves
    heartbeat_fingerprint: Int32 = 0
    # With a `heartbeat_fingerprint` other than 0: V2's short form, without subscriptions.
    is_without_sub: bool = False
    language: str = "JAVA"
    client_version: Int32 = 0
    client_address: Name = ""  # `ip:port`
    gateway: Name = ""  # name of the gateway that has the connection
    gateway_start: Name = ""  # id of the gateway's current start
    # None if the broker does not know the group.
    group_config: SubscriptionGroupConfig | None = SubscriptionGroupConfig()


class RegisterProducer(Request[RegisterResponse], frozen=True, kw_only=True, tag="HEART_BEAT_PRODUCER"):
    """The part of a heartbeat for one producer group. The fields are as in `RegisterConsumer`."""

    heartbeat_fingerprint: Int32 = 0
    language: str = "JAVA"
    client_version: Int32 = 0
    client_address: Name = ""
    gateway: Name = ""
    gateway_start: Name = ""


class UnregisterConsumer(
    Request[UnregisterResponse], frozen=True, kw_only=True, tag="UNREGISTER_CLIENT_CONSUMER"
):
    """Remove a consumer's connection from the group."""

    group_config: SubscriptionGroupConfig | None = None  # None: the default configuration


class UnregisterProducer(
    Request[UnregisterResponse], frozen=True, kw_only=True, tag="UNREGISTER_CLIENT_PRODUCER"
):
    """Remove a producer's connection from the group."""


class ConnectionClosed(Struct, frozen=True, kw_only=True, tag_field="type", tag="CONNECTION_CLOSED"):
    """Remove a connection that closed, failed or was idle for too long.

    There is one record for each group of the connection, without an answer.
    """

    group_id: Name
    connection: Name
    others: tuple[Name, ...] = ()  # connections that ended at the same time for the same reason
    reason: Name | None = None  # for the history, such as "the broker ended the connection"
    version: int = RECORD_VERSION


class GatewayStarted(Struct, frozen=True, kw_only=True, tag_field="type", tag="GATEWAY_STARTED"):
    """Remove the connections of a gateway's earlier starts.

    There is one record for each group with such connections, without an answer.
    """

    group_id: Name
    gateway: Annotated[Name, Meta(min_length=1)]
    gateway_start: Name  # id of the current start, or "" if the gateway is gone
    version: int = RECORD_VERSION


class GetConsumerListByGroup(
    Request[ConsumerListResponse], frozen=True, kw_only=True, tag="GET_CONSUMER_LIST_BY_GROUP"
):
    """Return the client ids of the group."""


class LockBatchMq(Request[LockBatchMqResponse], frozen=True, kw_only=True, tag="LOCK_BATCH_MQ"):
    """Lock queues for the client id, for orderly consumption."""

    mq_set: tuple[MessageQueue, ...]


class UnlockBatchMq(Request[UnlockBatchMqResponse], frozen=True, kw_only=True, tag="UNLOCK_BATCH_MQ"):
    """Unlock queues that the client id has locked."""

    mq_set: tuple[MessageQueue, ...]


class QueryAssignment(Request[QueryAssignmentResponse], frozen=True, kw_only=True, tag="QUERY_ASSIGNMENT"):
    """Return this client's queues of a topic. `topic_queues` is None if the topic's route is unknown."""

    topic: Name
    message_model: MessageModel
    strategy_name: str | None
    topic_queues: tuple[MessageQueue, ...] | None


class SetMessageRequestMode(
    Request[SetMessageRequestModeResponse], frozen=True, kw_only=True, tag="SET_MESSAGE_REQUEST_MODE"
):
    """Set the request mode of the group's clients for a topic whose queues the broker assigns."""

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
ANSWERS = tuple(dict.fromkeys(kind.answer for kind in get_args(AnyAnswered)))
"""The response classes of these requests."""

Unanswered = ConnectionClosed | GatewayStarted
"""A record without an answer."""
UNANSWERED = (ConnectionClosed, GatewayStarted)
"""The types of `Unanswered`, for `isinstance`."""

AnyRequest = AnyAnswered | Unanswered


class RequestMode(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The request mode of a topic whose queues the broker assigns."""

    mode: MessageRequestMode
    pop_share_queue_num: int  # only pop mode uses it
