"""Responses: one Struct a message, with RocketMQ's response codes and remarks. Source: ResponseCode.java."""

from enum import IntEnum

from msgspec import Struct

from assignors.rocketmq.message_queue import MessageQueue
from state.rocketmq.messages import RECORD_VERSION, MessageRequestMode


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
    is_sub_change: bool
    changed: bool = False


class UnregisterResponse(Response, frozen=True, kw_only=True, tag="UNREGISTER_CLIENT"):
    """Nothing but the code."""


class ConsumerListResponse(Response, frozen=True, kw_only=True, tag="GET_CONSUMER_LIST_BY_GROUP"):
    """One id a connection, so an id that two clients share stands twice."""

    consumer_id_list: tuple[str, ...] = ()


class LockBatchMqResponse(Response, frozen=True, kw_only=True, tag="LOCK_BATCH_MQ"):
    """Those of the queues that the client id holds now."""

    lock_ok_mq_set: tuple[MessageQueue, ...]


class UnlockBatchMqResponse(Response, frozen=True, kw_only=True, tag="UNLOCK_BATCH_MQ"):
    """Nothing but the code."""


class MessageQueueAssignment(Struct, frozen=True):
    """A queue for the client, and how it shall get its messages."""

    message_queue: MessageQueue
    mode: MessageRequestMode


class QueryAssignmentResponse(Response, frozen=True, kw_only=True, tag="QUERY_ASSIGNMENT"):
    """None: keep what you have. No queue at all: drop all you have."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None


class SetMessageRequestModeResponse(Response, frozen=True, kw_only=True, tag="SET_MESSAGE_REQUEST_MODE"):
    """Nothing but the code."""


AnyResponse = (
    RegisterResponse
    | UnregisterResponse
    | ConsumerListResponse
    | LockBatchMqResponse
    | UnlockBatchMqResponse
    | QueryAssignmentResponse
    | SetMessageRequestModeResponse
)
