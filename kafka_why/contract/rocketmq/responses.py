"""Responses with RocketMQ's response codes and remarks, and the broker's one-way messages to clients.

There is one Struct for each message. Every field of an answer has a default, because an error has only the
code. Source: ResponseCode.java, RequestCode.java.
"""

from enum import IntEnum

from msgspec import Struct

from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.rocketmq.queues import MessageQueue, MessageRequestMode


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
    """The fields of every response. `remark` is None on success. Readers drop duplicates by `request`, the
    request's id.
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
    is_sub_change: bool = True  # a V2 client sends the full form of its next heartbeat
    changed: bool = False  # the heartbeat changed the group's connections or topics
    is_new: bool = False  # the connection was new


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
    request: str  # id of the request, or the scan, that caused it
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
