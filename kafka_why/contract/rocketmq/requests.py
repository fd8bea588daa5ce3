"""Requests: one Struct for each message about one group, tagged with RocketMQ's name of the message.

Requests are decoded once, at the edge, so the coordinator's core (the package `state`) receives only
well-formed requests. A queue is [topic, broker name, queue id]. Some fields have data from outside the group:
the group's configuration, and a topic's queues.
Source: RequestCode.java and the classes of remoting/.../protocol/{heartbeat,body,header}.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum
from typing import Annotated, NamedTuple, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from kafka_why.contract.messages import RECORD_VERSION, A, Int32, Int64, TypedRequest
from kafka_why.contract.protocols.subscriptions import java_order

# RocketMQ's queues, and the strategies by which clients divide them.


class MessageRequestMode(StrEnum):
    """The way in which clients get the messages of queues that the broker assigns."""

    PULL = "PULL"
    POP = "POP"


class MessageQueue(NamedTuple):
    """A queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int  # from 0; -1 means all queues of a broker

    def __str__(self) -> str:
        """Return RocketMQ's own text of a queue, which CONSISTENT_HASH hashes and error texts contain."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"
"""The prefix of the names of retry topics. Clients also subscribe to their group's retry topic. Source:
MixAll.java.
"""


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sort by topic, broker name and number, with strings in the order of Java's String.compareTo."""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort in the order of Java's String.compareTo, in which "CID-10" is before "CID-2"."""
    return sorted(client_ids, key=java_order)


def averagely(queues: Sequence[MessageQueue], client_ids: Sequence[str], own_cid: str) -> list[MessageQueue]:
    """Divide the queues into consecutive blocks, and return the block of the client `own_cid`.

    The first blocks have one queue more if the numbers do not divide evenly. `queues` and `client_ids` are
    sorted.
    """
    index = client_ids.index(own_cid)
    quota, clients_with_extra = divmod(len(queues), len(client_ids))
    start = index * quota + min(index, clients_with_extra)
    size = quota + 1 if index < clients_with_extra else quota
    return list(queues[start : start + size])


def averagely_by_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_cid: str
) -> list[MessageQueue]:
    """Return every n-th queue, where n is the number of clients, for the client `own_cid`.

    `queues` and `client_ids` are sorted.
    """
    return list(queues[client_ids.index(own_cid) :: len(client_ids)])


# Responses with RocketMQ's response codes and remarks, and the broker's one-way messages to clients.


class ResponseCode(IntEnum):
    """The values of a response's `code`, with RocketMQ's numbers and names."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    REQUEST_CODE_NOT_SUPPORTED = 3
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    GO_AWAY = 1500


class Response(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The fields of every response.

    `remark` is None on success. Readers drop duplicates by `request`, the request's id.
    """

    group_id: str
    correlation_id: str
    request: str
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    version: int = RECORD_VERSION


class RegisterResponse(Response, frozen=True, kw_only=True, tag="HEART_BEAT"):
    """The part of a heartbeat's answer for one group."""

    is_support_heart_beat_v2: bool = True
    is_sub_change: bool = True  # asks a V2 client for the full form of its next heartbeat
    changed: bool = False  # True if the heartbeat changed the group's connections or topics
    is_new: bool = False  # True if the connection was new


class UnregisterResponse(Response, frozen=True, kw_only=True, tag="UNREGISTER_CLIENT"):
    """A response with only a code."""


class ConsumerListResponse(Response, frozen=True, kw_only=True, tag="GET_CONSUMER_LIST_BY_GROUP"):
    """The client ids of all connections. An id of two connections occurs twice."""

    consumer_id_list: tuple[str, ...] = ()


class LockBatchMqResponse(Response, frozen=True, kw_only=True, tag="LOCK_BATCH_MQ"):
    """The requested queues that are locked for the client id now."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = ()


class UnlockBatchMqResponse(Response, frozen=True, kw_only=True, tag="UNLOCK_BATCH_MQ"):
    """A response with only a code."""


class MessageQueueAssignment(Struct, frozen=True):
    """A queue of the client, and the request mode for its messages."""

    message_queue: MessageQueue
    mode: MessageRequestMode


class QueryAssignmentResponse(Response, frozen=True, kw_only=True, tag="QUERY_ASSIGNMENT"):
    """The client's queues. With None it keeps its queues, with () it drops them all."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


class SetMessageRequestModeResponse(Response, frozen=True, kw_only=True, tag="SET_MESSAGE_REQUEST_MODE"):
    """A response with only a code."""


class ToConnection(Struct, frozen=True, kw_only=True, tag_field="type"):
    """A one-way message to a connection."""

    group_id: str
    connection: str
    client_id: str
    request: str  # id of the request, or the scan, that led to the message
    version: int = RECORD_VERSION


class NotifyConsumerIdsChanged(ToConnection, frozen=True, kw_only=True, tag="NOTIFY_CONSUMER_IDS_CHANGED"):
    """Notify a client that the group's client ids changed, so that it rebalances now.

    Without this message, the client rebalances when its own timer fires.
    """


class CloseConnection(ToConnection, frozen=True, kw_only=True, tag="CLOSE_CONNECTION"):
    """Close a connection that was silent for too long. The client then opens a new connection."""

    reason: str


AnyToConnection = NotifyConsumerIdsChanged | CloseConnection

AnyResponse = Response
"""A response to a request of `kafka_why.contract.rocketmq.requests`."""


# A group, topic, client id or connection; RocketMQ bounds some of them more tightly.
Name = Annotated[str, Meta(max_length=32_767)]


class MessageModel(StrEnum):
    """The division of queues."""

    BROADCASTING = "BROADCASTING"  # each client reads all queues
    CLUSTERING = "CLUSTERING"  # the clients divide the queues


class ConsumeType(StrEnum):
    """The way in which a consumer gets its messages: pull, push or pop."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class ConsumeFromWhere(StrEnum):
    """The position from which a client reads a queue without a stored offset.

    The broker only stores the value.
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


class Request(TypedRequest[A], frozen=True, kw_only=True, tag_field="type"):
    """The fields of every request: the client, the group, and the address of the answer."""

    group_id: Name
    connection: Name  # its unique id
    client_id: Name  # should be unique, but several clients may have the same id
    correlation_id: Name
    reply_partition: Int32
    # The broker to which the client sent the request, as `name/id` (0 is the master); "" if there is only
    # one. Each broker has its own table of consumers.
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
    # True for the short form of a V2 heartbeat, without subscriptions; only with a `heartbeat_fingerprint`.
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

    group_config: SubscriptionGroupConfig | None = None  # None means the default configuration


class UnregisterProducer(
    Request[UnregisterResponse], frozen=True, kw_only=True, tag="UNREGISTER_CLIENT_PRODUCER"
):
    """Remove a producer's connection from the group."""


class ConnectionClosed(Struct, frozen=True, kw_only=True, tag_field="type", tag="CONNECTION_CLOSED"):
    """Remove a connection that closed, failed or was idle for too long.

    There is one record for each group of the connection. It has no answer.
    """

    group_id: Name
    connection: Name
    others: tuple[Name, ...] = ()  # connections that ended at the same time for the same reason
    reason: Name | None = None  # for the history, such as "the broker ended the connection"
    version: int = RECORD_VERSION


class GatewayStarted(Struct, frozen=True, kw_only=True, tag_field="type", tag="GATEWAY_STARTED"):
    """Remove the connections of a gateway's earlier starts.

    There is one record for each group with such connections. It has no answer.
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
    """Ask for this client's queues of a topic. `topic_queues` is None if the topic's route is unknown."""

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


AnyAnsweredRequest = (
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
ANSWERS = tuple(dict.fromkeys(kind.response_type for kind in get_args(AnyAnsweredRequest)))
"""The response classes of these requests."""

Unanswered = ConnectionClosed | GatewayStarted
"""A record without an answer."""
UNANSWERED = (ConnectionClosed, GatewayStarted)
"""The types of `Unanswered`, for `isinstance`."""

AnyRequest = AnyAnsweredRequest | Unanswered


class RequestMode(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The request mode of a topic whose queues the broker assigns."""

    mode: MessageRequestMode
    pop_share_queue_num: int  # only pop mode uses it
