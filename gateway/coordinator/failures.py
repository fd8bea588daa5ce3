"""The client's error if the coordinator gave no answer: one table for all requests. A permanent failure would
recur at each retry, so a client gets UNKNOWN_SERVER_ERROR and raises it to its application. A retriable
failure has its cause in brokers or the coordinator: after COORDINATOR_NOT_AVAILABLE a client looks for the
coordinator, finds a gateway, and retries.

Source: CoordinatorOperationExceptionHelper.handleOperationException, except for NOT_LEADER_OR_FOLLOWER and
KAFKA_STORAGE_ERROR: in Kafka the coordinator has moved with its partition (NOT_COORDINATOR), here it has not.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException
from msgspec import structs

from clients.coordinator_client import Header
from clients.pending import (
    AnyRequest,
    ClientClosed,
    CoordinatorError,
    R,
    RequestNotSent,
    RequestTimedOut,
    RequestTooLarge,
)
from kafka_why.contract.kafka.requests import JoinGroup, OversizedRequest, SyncGroup
from kafka_why.contract.kafka.responses import OversizedRequestResponse
from kafka_why.contract.layout import LIMIT
from kafka_why.contract.messages import ANONYMOUS, ErrorCode, Request
from kafka_why.contract.rocketmq.requests import Request as RocketMqRequest
from kafka_why.contract.rocketmq.requests import ResponseCode
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
"""The failure of a request that was not sent, although neither a broker nor the producer rejected it."""

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
    """Return a response that has only an error code. A response of RocketMQ has SYSTEM_ERROR, and the name of
    the error code.
    """
    answer: type[R] = request.answer
    error: dict[str, Any] = {"error_code": error_code}
    if isinstance(request, RocketMqRequest):
        error = {"code": ResponseCode.SYSTEM_ERROR, "remark": error_code.name}
    return answer(group_id=request.group_id, correlation_id=request.correlation_id, request="", **error)


# Refusals of requests that the requests topic cannot carry.
#
# The coordinator is notified of a JoinGroup or SyncGroup that is too large. So the group's history has the
# sizes, and members that wait for an assignment get the error, too (rows J9 and S10). Other requests are
# only logged.


class RequestSender(Protocol):
    """The part of `gateway.coordinator.backend.Backend` that sends the notice to the coordinator."""

    def header(
        self, group_id: str, api_version: int, client_id: str, client_host: str, principal: str
    ) -> Header: ...

    def send(
        self, request: Request[OversizedRequestResponse], timeout_ms: int | None = None
    ) -> asyncio.Future[OversizedRequestResponse]: ...


def too_large(request: AnyRequest[Any], frame_bytes: int, max_bytes: int) -> RequestTooLarge:
    """Return the error of a request whose frame is too large for a record."""
    return RequestTooLarge(
        f"{type(request).__name__} for group {request.group_id!r} is too large: "
        f"the frame has {frame_bytes} bytes, {LIMIT} is {max_bytes}",
        frame_bytes,
        max_bytes,
    )


def refused(sender: RequestSender, request: AnyRequest[R], error: RequestTooLarge) -> asyncio.Future[R]:
    """Return the future of the response to a request that is too large. It is done when the group has been
    notified.
    """
    response: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    notice = _notice(sender, request, error)
    permanent = failure_of(error).error_code
    if notice is None:
        response.set_result(failed(request, permanent))
    else:
        sender.send(notice).add_done_callback(partial(_settle, response, request, permanent))
    return response


def _settle(
    response: asyncio.Future[R],
    request: AnyRequest[R],
    permanent: ErrorCode,
    noticed: asyncio.Future[OversizedRequestResponse],
) -> None:
    """Answer with the coordinator's error, or with `permanent` if the coordinator does not answer."""
    if response.done() or noticed.cancelled():
        return
    answer = noticed.result()
    response.set_result(failed(request, answer.error_code if answer.request else permanent))


def _notice(
    sender: RequestSender, request: AnyRequest[Any], error: RequestTooLarge
) -> OversizedRequest | None:
    """Return the request that notifies the group, or None if no group would act on it."""
    if not isinstance(request, JoinGroup | SyncGroup):
        return None
    header = sender.header(
        request.group_id,
        request.api_version,
        request.client_id,
        request.client_host,
        request.principal or ANONYMOUS,
    )
    notice = OversizedRequest(
        **header,
        kind="JoinGroup",
        size_bytes=error.size_bytes,
        max_bytes=error.max_bytes,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
    )
    if isinstance(request, JoinGroup):
        return notice
    return structs.replace(
        notice,
        kind="SyncGroup",
        generation_id=request.generation_id,
        protocol_name=request.protocol_name,
    )
