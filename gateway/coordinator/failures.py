"""The client's error if the coordinator gave no answer: one table for all requests. A permanent failure would
recur at each retry, so a client gets UNKNOWN_SERVER_ERROR and raises it to its application. A retriable
failure is of brokers or of the coordinator: after COORDINATOR_NOT_AVAILABLE a client looks for the
coordinator, finds a gateway, and retries.

Source: CoordinatorOperationExceptionHelper.handleOperationException, except for NOT_LEADER_OR_FOLLOWER and
KAFKA_STORAGE_ERROR: in Kafka the coordinator has moved with its partition (NOT_COORDINATOR), here it has not.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from clients.pending import (
    AnyRequest,
    ClientClosed,
    CoordinatorError,
    R,
    RequestNotSent,
    RequestTimedOut,
    RequestTooLarge,
)
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.rocketmq.requests import Request as RocketMqRequest
from kafka_why.contract.rocketmq.responses import ResponseCode
from kafka_why.topic_reader import ClientError


class Failure(NamedTuple):
    """The code for a failure, and why it is permanent or retriable."""

    error_code: ErrorCode
    why: str


def _permanent(why: str) -> Failure:
    return Failure(ErrorCode.UNKNOWN_SERVER_ERROR, why)


def _retriable(why: str) -> Failure:
    return Failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)


BY_TYPE: Mapping[type[ClientError], Failure] = MappingProxyType(
    {
        RequestTooLarge: _permanent("it will never fit into the requests topic"),
        RequestTimedOut: _retriable("the coordinator is down or slow"),
        ClientClosed: _retriable("this gateway ends, and the client may find another one"),
        RequestNotSent: _retriable("no broker accepted it, see BY_CODE"),
        ClientError: _retriable("a fault of the gateway, not of the request"),
    }
)
"""The failures by the class of the error; the first match counts. A CoordinatorError has its own code."""

NOT_ENCODED = _permanent("its text cannot be encoded")
"""The failure of a request that was not sent, but not because of a broker or the producer."""

BY_CODE: Mapping[int, Failure] = MappingProxyType(
    {
        KafkaError.MSG_SIZE_TOO_LARGE: _permanent(
            "max.message.bytes of the topic is smaller than at the start"
        ),
        KafkaError.RECORD_LIST_TOO_LARGE: _permanent("segment.bytes of the topic is smaller than the record"),
        KafkaError.INVALID_RECORD: _permanent("the broker accepts no such record"),
        KafkaError.POLICY_VIOLATION: _permanent("the broker accepts no such record"),
        KafkaError._BAD_MSG: _permanent("the client library accepts no such record"),
        KafkaError._INVALID_ARG: _permanent("the client library accepts no such record"),
        KafkaError.INVALID_MSG: _retriable("it was damaged in transit"),
        KafkaError._QUEUE_FULL: _retriable("the producer's queue is full"),
        KafkaError._MSG_TIMED_OUT: _retriable("no broker acknowledged it in time"),
        KafkaError._TRANSPORT: _retriable("no broker is reachable"),
        KafkaError._ALL_BROKERS_DOWN: _retriable("no broker is reachable"),
        KafkaError._PURGE_QUEUE: _retriable("the producer was replaced before it was sent"),
        KafkaError._PURGE_INFLIGHT: _retriable("the producer was replaced before it was acknowledged"),
        KafkaError.NOT_LEADER_FOR_PARTITION: _retriable("the partition moves to another broker"),
        KafkaError.KAFKA_STORAGE_ERROR: _retriable("the partition moves to another disk or broker"),
        KafkaError.NOT_ENOUGH_REPLICAS: _retriable("brokers are down"),
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _retriable("brokers are down"),
        KafkaError.REQUEST_TIMED_OUT: _retriable("brokers are down or slow"),
        KafkaError.UNKNOWN_TOPIC_OR_PART: _retriable("the broker does not know the topic yet"),
        KafkaError.TOPIC_AUTHORIZATION_FAILED: _retriable("the gateway's rights are not the client's fault"),
    }
)
"""The failures of requests that were not sent, by the code of the broker or of librdkafka. Any other code is
retriable.
"""


def failure_of(error: ClientError) -> Failure:
    """Return the error's row in BY_TYPE or BY_CODE."""
    if isinstance(error, CoordinatorError):
        return Failure(error.error_code, "the coordinator's own refusal")
    if isinstance(error, RequestNotSent) and (cause := error.__cause__) is not None:
        if isinstance(cause, BufferError):
            return BY_CODE[KafkaError._QUEUE_FULL]
        if not isinstance(cause, KafkaException):
            return NOT_ENCODED
        if (found := BY_CODE.get(cause.args[0].code())) is not None:
            return found
    return next(failure for kind, failure in BY_TYPE.items() if isinstance(error, kind))


def failed(request: AnyRequest[R], error_code: ErrorCode) -> R:
    """Return a response that has only an error code. RocketMQ's has SYSTEM_ERROR, with the code's name."""
    answer: type[R] = request.answer
    error: dict[str, Any] = {"error_code": error_code}
    if isinstance(request, RocketMqRequest):
        error = {"code": ResponseCode.SYSTEM_ERROR, "remark": error_code.name}
    return answer(group_id=request.group_id, correlation_id=request.correlation_id, request="", **error)
