"""Bodies of clients' requests, which are refused if another parser could read them differently, and of
answers.

Three deviations are accepted, because real clients send them. Enumerations may be ordinals (C++), or names in
any case (Go). Versions and hash codes of subscriptions may be numbers in strings (C++, Go). Sets of tags and
codes may be null.

Source: HeartbeatData, ConsumerData, SubscriptionData, LockBatchRequestBody, QueryAssignmentRequestBody,
SetMessageRequestModeRequestBody and the bodies of their responses.
"""

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.json import Decoder

from kafka_why.contract.messages import Int32
from kafka_why.contract.rocketmq.requests import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    MessageQueueAssignment,
    MessageRequestMode,
    SubscriptionData,
)
from kafka_why.remoting.strict_json import MalformedFrame, decode_body, names_of

# The limits of a body. Those of groups and subscriptions are for a heartbeat.
BODY_MAX_BYTES = 1_048_576
GROUPS_MAX = 1_000
SUBSCRIPTIONS_MAX = 10_000
QUEUES_MAX = 10_000

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_Name = Annotated[str, Meta(min_length=1, max_length=255)]
_ClientId = Annotated[str, Meta(min_length=1, max_length=1_024)]
_Enumeration = str | int  # a name or an ordinal
# Java's Long.MIN_VALUE has 20 characters.
_Number = Annotated[str, Meta(max_length=20)] | int
_NUMBER_TEXT = re.compile("0|-?[1-9][0-9]*", re.ASCII)
_INT32_BOUND, _INT64_BOUND = 2**31, 2**63


class ConsumerData(Struct, frozen=True, kw_only=True):
    """One consumer group of a heartbeat."""

    group_name: str
    message_model: MessageModel
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()


class HeartbeatData(Struct, frozen=True, kw_only=True):
    """The consumer and producer groups of a client's process."""

    client_id: str
    consumer_data_set: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[str, ...] = ()
    heartbeat_fingerprint: int = 0  # hash of the client's groups and subscriptions (heartbeat V2); 0 without
    is_without_sub: bool = False  # the subscriptions are left out, because the broker has them (heartbeat V2)


class LockBatch(Struct, frozen=True):
    """The queues that a client wants to lock or unlock."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...]


class AssignmentQuery(Struct, frozen=True):
    """A request for a client's queues of a topic."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None  # of the allocation; None if the client did not send it
    message_model: MessageModel


class ModeSetting(Struct, frozen=True):
    """A request mode to set for a group's clients and a topic."""

    topic: str
    consumer_group: str
    mode: MessageRequestMode
    pop_share_queue_num: int


class _Body(Struct, rename="camel"):
    """A JSON object of a body. Fields that were not sent are UNSET, so `decode_body` can count the names."""


class _Subscription(_Body):
    """A SubscriptionData, as it was sent."""

    topic: _Name
    sub_string: str
    sub_version: _Number
    expression_type: str | UnsetType = UNSET
    tags_set: list[str] | UnsetType | None = UNSET
    code_set: list[_Number] | UnsetType | None = UNSET
    class_filter_mode: bool | UnsetType = UNSET
    filter_class_source: str | UnsetType | None = UNSET


class _Consumer(_Body):
    """A ConsumerData, as it was sent."""

    group_name: _Name
    message_model: _Enumeration
    consume_type: _Enumeration
    consume_from_where: _Enumeration
    subscription_data_set: list[_Subscription] | UnsetType = UNSET
    unit_mode: bool | UnsetType = UNSET


class _Producer(_Body):
    """A ProducerData, as it was sent."""

    group_name: _Name


class _Heartbeat(_Body):
    """A HeartbeatData, as it was sent."""

    client_id: _ClientId = msgspec.field(name="clientID")
    consumer_data_set: list[_Consumer] | UnsetType = UNSET
    producer_data_set: list[_Producer] | UnsetType = UNSET
    heartbeat_fingerprint: Int32 | UnsetType = UNSET
    without_sub: bool | UnsetType = UNSET


class _Queue(_Body):
    """A MessageQueue, as it was sent."""

    topic: _Name
    broker_name: _Name
    queue_id: Int32


class _LockBatch(_Body):
    """A LockBatchRequestBody, as it was sent."""

    consumer_group: _Name
    client_id: _ClientId
    mq_set: Annotated[list[_Queue], Meta(max_length=QUEUES_MAX)]
    only_this_broker: bool | UnsetType = UNSET


class _AssignmentQuery(_Body):
    """A QueryAssignmentRequestBody, as it was sent."""

    topic: _Name
    consumer_group: _Name
    client_id: _ClientId
    message_model: _Enumeration
    strategy_name: str | UnsetType | None = UNSET


class _ModeSetting(_Body):
    """A SetMessageRequestModeRequestBody, as it was sent."""

    topic: _Name
    consumer_group: _Name
    mode: _Enumeration | UnsetType = UNSET
    pop_share_queue_num: Int32 | UnsetType = UNSET


# The decoder of each body, and the names that its objects may have.
_HEARTBEAT = Decoder(_Heartbeat), names_of(_Heartbeat, _Consumer, _Subscription, _Producer)
_LOCK_BATCH = Decoder(_LockBatch), names_of(_LockBatch, _Queue)
_ASSIGNMENT_QUERY = Decoder(_AssignmentQuery), names_of(_AssignmentQuery)
_MODE_SETTING = Decoder(_ModeSetting), names_of(_ModeSetting)


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Decode the body of HEART_BEAT. Raises MalformedFrame."""
    sent = _decode(body, _HEARTBEAT)
    consumers, producers = sent.consumer_data_set or [], sent.producer_data_set or []
    group_count = len(consumers) + len(producers)
    subscription_count = sum(len(consumer.subscription_data_set or ()) for consumer in consumers)
    if group_count > GROUPS_MAX or subscription_count > SUBSCRIPTIONS_MAX:
        raise MalformedFrame(f"{group_count} groups, {subscription_count} subscriptions")
    # A broker reads these sets in any order, and keeps the last of equal names.
    _check_unique([consumer.group_name for consumer in consumers])
    return HeartbeatData(
        client_id=sent.client_id,
        consumer_data_set=tuple(map(_consumer_data, consumers)),
        producer_groups=tuple(dict.fromkeys(producer.group_name for producer in producers)),
        heartbeat_fingerprint=sent.heartbeat_fingerprint or 0,
        is_without_sub=sent.without_sub is True,
    )


def decode_lock_batch(body: bytes) -> LockBatch:
    """Decode the body of LOCK_BATCH_MQ or UNLOCK_BATCH_MQ. Raises MalformedFrame."""
    sent = _decode(body, _LOCK_BATCH)
    queues = (MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in sent.mq_set)
    return LockBatch(sent.consumer_group, sent.client_id, tuple(dict.fromkeys(queues)))


def decode_query_assignment(body: bytes) -> AssignmentQuery:
    """Decode the body of QUERY_ASSIGNMENT. Raises MalformedFrame."""
    sent = _decode(body, _ASSIGNMENT_QUERY)
    return AssignmentQuery(
        sent.topic,
        sent.consumer_group,
        sent.client_id,
        None if sent.strategy_name is UNSET else sent.strategy_name,
        _parse_enumeration(MessageModel, sent.message_model),
    )


def decode_set_message_request_mode(body: bytes) -> ModeSetting:
    """Decode the body of SET_MESSAGE_REQUEST_MODE. Raises MalformedFrame."""
    sent = _decode(body, _MODE_SETTING)
    return ModeSetting(
        sent.topic,
        sent.consumer_group,
        MessageRequestMode.PULL if sent.mode is UNSET else _parse_enumeration(MessageRequestMode, sent.mode),
        sent.pop_share_queue_num or 0,
    )


def encode_consumer_list(client_ids: Collection[str]) -> bytes:
    """Encode the answer to GET_CONSUMER_LIST_BY_GROUP."""
    return msgspec.json.encode({"consumerIdList": client_ids})


def encode_lock_ok(queues: Iterable[MessageQueue]) -> bytes:
    """Encode the answer to LOCK_BATCH_MQ. `queues` are locked."""
    return msgspec.json.encode({"lockOKMQSet": list(map(_queue_to_json, queues))})


def encode_assignments(assignments: Iterable[MessageQueueAssignment] | None) -> bytes:
    """Encode the answer to QUERY_ASSIGNMENT. With None, the client keeps its queues."""
    if assignments is None:
        return b"{}"
    encoded = [
        {"messageQueue": _queue_to_json(assignment.message_queue), "mode": assignment.mode}
        for assignment in assignments
    ]
    return msgspec.json.encode({"messageQueueAssignments": encoded})


def _decode(body: bytes, decoder_and_names: tuple[Decoder[T], frozenset[str]]) -> T:
    if len(body) > BODY_MAX_BYTES:
        raise MalformedFrame(f"a body of {len(body)} bytes")
    return decode_body(body, *decoder_and_names)


def _consumer_data(sent: _Consumer) -> ConsumerData:
    subscriptions = sent.subscription_data_set or []
    _check_unique([subscription.topic for subscription in subscriptions])
    return ConsumerData(
        group_name=sent.group_name,
        message_model=_parse_enumeration(MessageModel, sent.message_model),
        consume_type=_parse_enumeration(ConsumeType, sent.consume_type),
        consume_from_where=_parse_enumeration(ConsumeFromWhere, sent.consume_from_where),
        subscription_data_set=tuple(map(_subscription_data, subscriptions)),
    )


def _subscription_data(sent: _Subscription) -> SubscriptionData:
    return SubscriptionData(
        topic=sent.topic,
        sub_string=sent.sub_string,
        sub_version=_parse_number(sent.sub_version, _INT64_BOUND),
        expression_type="TAG" if sent.expression_type is UNSET else sent.expression_type,
        tags_set=tuple(dict.fromkeys(sent.tags_set or ())),
        code_set=tuple(dict.fromkeys(_parse_number(code, _INT32_BOUND) for code in sent.code_set or ())),
    )


def _check_unique(names: Collection[str]) -> None:
    if len(set(names)) < len(names):
        raise MalformedFrame("a group or a topic occurs twice")


def _parse_enumeration(kind: type[E], sent: _Enumeration) -> E:
    """Return the value of `kind` with this ordinal, or with this name in any case. Raises MalformedFrame."""
    values = list(kind)
    if isinstance(sent, int) and 0 <= sent < len(values):
        return values[sent]
    if isinstance(sent, str) and sent.isascii() and sent.upper() in kind.__members__:
        return kind[sent.upper()]
    raise MalformedFrame(f"{kind.__name__} {sent!r}")


def _parse_number(sent: _Number, bound: int) -> int:
    """Return a number from `-bound` to `bound - 1`, which may be sent as a string. Raises MalformedFrame."""
    if isinstance(sent, str) and not _NUMBER_TEXT.fullmatch(sent):
        raise MalformedFrame(f"number {sent!r}")
    number = int(sent)
    if not -bound <= number < bound:
        raise MalformedFrame(f"number {number}")
    return number


def _queue_to_json(queue: MessageQueue) -> dict[str, str | int]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
