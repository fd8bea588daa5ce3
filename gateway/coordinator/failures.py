"""The error that a client gets if the coordinator has not answered its request.

A permanent failure would recur at each retry. So the client gets UNKNOWN_SERVER_ERROR, and raises it to its
application. A retriable failure has its cause in brokers or the coordinator. After COORDINATOR_NOT_AVAILABLE
the client looks for the coordinator, finds a gateway, and retries.

Source: CoordinatorOperationExceptionHelper.handleOperationException, except for NOT_LEADER_OR_FOLLOWER and
KAFKA_STORAGE_ERROR. Kafka answers these with NOT_COORDINATOR, because its coordinator has moved with the
partition. This coordinator does not move.
"""

import asyncio
from functools import partial
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException
from msgspec import structs

from clients.coordinator_client import Header
from clients.pending import (
    AnyRequest,
    CoordinatorError,
    R,
    RequestNotSent,
    RequestTooLarge,
)
from kafka_why.contract.kafka.requests import JoinGroup, OversizedRequest, SyncGroup
from kafka_why.contract.kafka.responses import OversizedRequestResponse
from kafka_why.contract.layout import LIMIT
from kafka_why.contract.messages import ANONYMOUS, ErrorCode, Request, Response
from kafka_why.contract.rocketmq.requests import Request as RocketMqRequest
from kafka_why.contract.rocketmq.requests import ResponseCode
from kafka_why.topic_reader import ClientError

# The producer's errors that recur at each retry. All others are retriable: for example, brokers are down or
# slow, or the partition moves.
_PERMANENT_CODES = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,  # max.message.bytes of the topic is smaller than at the start
        KafkaError.RECORD_LIST_TOO_LARGE,  # segment.bytes of the topic is smaller than the record
        # The broker accepts no such record.
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        # The client library accepts no such record.
        KafkaError._BAD_MSG,
        KafkaError._INVALID_ARG,
    }
)


def error_code_of(error: ClientError) -> ErrorCode:
    """Return the error code for the client whose request has ended with this error."""
    if isinstance(error, CoordinatorError):
        return error.error_code
    cause = error.__cause__ if isinstance(error, RequestNotSent) else None
    if isinstance(cause, KafkaException):
        is_permanent = cause.args[0].code() in _PERMANENT_CODES
    else:
        # A BufferError is a full queue of the producer. Any other cause is text that cannot be encoded.
        cannot_be_encoded = cause is not None and not isinstance(cause, BufferError)
        is_permanent = isinstance(error, RequestTooLarge) or cannot_be_encoded
    return ErrorCode.UNKNOWN_SERVER_ERROR if is_permanent else ErrorCode.COORDINATOR_NOT_AVAILABLE


def error_response(request: AnyRequest[R], error_code: ErrorCode) -> R:
    """Return a response that has only an error code. A response of RocketMQ has SYSTEM_ERROR, and the name of
    the error code. The response's field `request` is "", which shows that it is not the coordinator's.
    """
    response_type: type[R] = request.response_type
    error: dict[str, Any] = {"error_code": error_code}
    if isinstance(request, RocketMqRequest):
        error = {"code": ResponseCode.SYSTEM_ERROR, "remark": error_code.name}
    return response_type(
        group_id=request.group_id, correlation_id=request.correlation_id, request="", **error
    )


# Refusals of requests that the requests topic cannot carry.
#
# The coordinator is notified of a JoinGroup or SyncGroup that is too large. So the group's history has the
# sizes, and members that wait for an assignment get the error, too (rows J9 and S10 of docs/rules.md). Other
# requests are only logged.


K = TypeVar("K", bound=Response)


class Backend(Protocol):
    """A sender of requests about Kafka's groups."""

    answered_at_s: float  # the time of the last answer, in seconds of `time.monotonic`

    def header(
        self, group_id: str, api_version: int, client_id: str, client_host: str, principal: str
    ) -> Header:
        """Return the header of a request about this group, with a new correlation id."""

    async def ask(self, request: Request[K], timeout_ms: int | None = None) -> K:
        """Send a request and return the response.

        If no response comes, log the reason, and return a response with only an error code. If `timeout_ms`
        is None, the request waits only for a time that the member's session permits (`AdaptiveTimeout`).
        """

    def send(self, request: Request[K], timeout_ms: int | None = None) -> asyncio.Future[K]:
        """Send a request as `ask` does, without waiting. Requests are sent in the order of the calls."""

    def refuse(self, request: Request[K], error: RequestTooLarge) -> asyncio.Future[K]:
        """Return the response to a request that is too large, without sending the request."""


def oversized_error(request: AnyRequest[Any], frame_bytes: int, max_bytes: int) -> RequestTooLarge:
    """Return the error of a request whose frame is too large for a record."""
    return RequestTooLarge(
        f"{type(request).__name__} for group {request.group_id!r} is too large: "
        f"the frame has {frame_bytes} bytes, {LIMIT} is {max_bytes}",
        frame_bytes,
        max_bytes,
    )


def refuse_oversized(sender: Backend, request: AnyRequest[R], error: RequestTooLarge) -> asyncio.Future[R]:
    """Return the future of the response to a request that is too large. It is done at once, except for a
    JoinGroup or SyncGroup, of which the coordinator is notified first.
    """
    response: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    notice = _oversized_notice(sender, request, error)
    default_code = error_code_of(error)
    if notice is None:
        response.set_result(error_response(request, default_code))
    else:
        sender.send(notice).add_done_callback(partial(_settle, response, request, default_code))
    return response


def _settle(
    response: asyncio.Future[R],
    request: AnyRequest[R],
    default_code: ErrorCode,
    notice_response: asyncio.Future[OversizedRequestResponse],
) -> None:
    """Answer with the coordinator's error, or with `default_code` if the coordinator does not answer."""
    if response.done() or notice_response.cancelled():
        return
    answer = notice_response.result()
    is_coordinators = answer.request != ""  # see `error_response`
    response.set_result(error_response(request, answer.error_code if is_coordinators else default_code))


def _oversized_notice(
    sender: Backend, request: AnyRequest[Any], error: RequestTooLarge
) -> OversizedRequest | None:
    """Return the request that notifies the group's coordinator, or None if `request` is neither a JoinGroup
    nor a SyncGroup.
    """
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
