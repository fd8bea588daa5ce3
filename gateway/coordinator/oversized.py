"""Refusals of requests that the requests topic cannot carry.

The coordinator is notified of a too large JoinGroup or SyncGroup, so that the group's history has the sizes,
and members that wait for an assignment get the error, too (rows J9 and S10). Other requests are only logged.
"""

import asyncio
from functools import partial
from typing import Any, Protocol

from msgspec import structs

from clients.coordinator_client import Header
from clients.pending import AnyRequest, R, RequestTooLarge
from gateway.coordinator.failures import failed, failure_of
from kafka_why.contract.kafka.requests import JoinGroup, OversizedRequest, SyncGroup
from kafka_why.contract.kafka.responses import OversizedRequestResponse
from kafka_why.contract.layout import LIMIT
from kafka_why.contract.messages import ANONYMOUS, ErrorCode, Request


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
    """Answer with the coordinator's error, or with the permanent one if the coordinator does not answer."""
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
