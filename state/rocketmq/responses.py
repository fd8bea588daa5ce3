"""Responses, with RocketMQ's response codes and remarks, and what the broker says to clients by itself.

One Struct a message. What a response has beside its code has a default, for an answer that is an error only.
Source: ResponseCode.java, RequestCode.java.
"""

from enum import IntEnum

from msgspec import Struct

from assignors.rocketmq.api import MessageRequestMode
from assignors.rocketmq.message_queue import MessageQueue
from state.messages import RECORD_VERSION


class ResponseCode(IntEnum):
    """What a response's `code` may be: RocketMQ's own numbers and names."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    SUBSCRIPTION_GROUP_NOT_EXIST = 26


class Response(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every response carries. `request` is the id that readers drop duplicates by."""

    group_id: str
    correlation_id: str
    request: str
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    version: int = RECORD_VERSION


class RegisterResponse(Response, frozen=True, kw_only=True, tag="HEART_BEAT"):
    """A group's part of a heartbeat's answer. `is_sub_change` asks a V2 client for its full form next time.

    `changed` says whether the group's connections or topics are others now.
    """

    is_support_heart_beat_v2: bool = True
    is_sub_change: bool = True
    changed: bool = False


class UnregisterResponse(Response, frozen=True, kw_only=True, tag="UNREGISTER_CLIENT"):
    """Nothing but the code."""


class ConsumerListResponse(Response, frozen=True, kw_only=True, tag="GET_CONSUMER_LIST_BY_GROUP"):
    """One id a connection, so an id that two clients share stands twice."""

    consumer_id_list: tuple[str, ...] = ()


class LockBatchMqResponse(Response, frozen=True, kw_only=True, tag="LOCK_BATCH_MQ"):
    """Those of the queues that the client id holds now."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = ()


class UnlockBatchMqResponse(Response, frozen=True, kw_only=True, tag="UNLOCK_BATCH_MQ"):
    """Nothing but the code."""


class MessageQueueAssignment(Struct, frozen=True):
    """A queue for the client, and how it shall get its messages."""

    message_queue: MessageQueue
    mode: MessageRequestMode


class QueryAssignmentResponse(Response, frozen=True, kw_only=True, tag="QUERY_ASSIGNMENT"):
    """None: keep what you have. No queue at all: drop all you have."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


class SetMessageRequestModeResponse(Response, frozen=True, kw_only=True, tag="SET_MESSAGE_REQUEST_MODE"):
    """Nothing but the code."""


class ToConnection(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What is said to one connection, one-way. `request` is the request or the scan that led to it."""

    group_id: str
    connection: str
    client_id: str
    request: str
    version: int = RECORD_VERSION


class NotifyConsumerIdsChanged(ToConnection, frozen=True, kw_only=True, tag="NOTIFY_CONSUMER_IDS_CHANGED"):
    """The group's client ids changed: rebalance now. Where it is lost, the client's timer helps."""


class CloseConnection(ToConnection, frozen=True, kw_only=True, tag="CLOSE_CONNECTION"):
    """The connection was silent for too long and is none any more: come back on another one."""

    reason: str


AnyToConnection = NotifyConsumerIdsChanged | CloseConnection

AnyResponse = (
    RegisterResponse
    | UnregisterResponse
    | ConsumerListResponse
    | LockBatchMqResponse
    | UnlockBatchMqResponse
    | QueryAssignmentResponse
    | SetMessageRequestModeResponse
)
