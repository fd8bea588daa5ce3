"""The coordinator as the gateway sees it: ask, and there is always an answer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

from state.errors import ErrorCode
from state.messages import AnyRequest
from state.responses import Response
from streaming.client import CoordinatorClient, Header
from streaming.pending import ClientClosed, ClientError, CoordinatorError

# Less than the 30 s that clients give a request (request.timeout.ms), so that they are told.
ANSWER_TIMEOUT_MS = 25_000
# A JoinGroup or SyncGroup is parked for as long as the group's slowest member may take, which nobody here
# knows. The coordinator's own deadlines end it; this is for the case that there is no coordinator.
PARKED_TIMEOUT_MS = 600_000

R = TypeVar("R", bound=Response)

log = structlog.get_logger()


class Backend(Protocol):
    """Whoever answers for the groups."""

    def header(self, group_id: str, api_version: int, client_id: str, client_host: str) -> Header:
        """What a request about this group begins with, under a correlation id of its own."""

    async def ask(self, request: AnyRequest, answer: type[R], timeout_ms: int = ANSWER_TIMEOUT_MS) -> R:
        """The answer. Where there is none it has an error code alone, and a log line says why."""


class CoordinatorBackend:
    """Requests go onto the coordinator's topic, answers come from this gateway's own reply partition.

    Several gateways may share a reply partition: correlation ids are unique for each start of a client, and
    what answers somebody else's request is dropped.
    """

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client
        # Sending may wait for a broker, which the event loop must not.
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gateway-sender")

    def header(self, group_id: str, api_version: int, client_id: str, client_host: str) -> Header:
        """See `Backend`."""
        own = self._client.header(group_id, api_version)
        return {**own, "client_id": client_id, "client_host": client_host}

    async def ask(self, request: AnyRequest, answer: type[R], timeout_ms: int = ANSWER_TIMEOUT_MS) -> R:
        """See `Backend`. When it is cancelled, the answer is dropped as it comes."""
        loop = asyncio.get_running_loop()
        try:
            sent = await loop.run_in_executor(
                self._sender, lambda: self._client.send(request, answer, timeout_ms=timeout_ms)
            )
            return await asyncio.wrap_future(sent)
        except ClientError as error:
            if not isinstance(error, ClientClosed):
                log.warning("no answer from the coordinator", error=str(error))
            return failed(request, answer, error_code_of(error))

    def close(self) -> None:
        """End the sender; the client is its owner's to close, after this."""
        self._sender.shutdown()


def error_code_of(error: ClientError) -> ErrorCode:
    """What a client is told: the coordinator's own refusal, else to look for the coordinator again."""
    if isinstance(error, CoordinatorError):
        return error.error_code
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def failed(request: AnyRequest, answer: type[R], error_code: ErrorCode) -> R:
    """An answer that has nothing but an error code."""
    return answer(
        group_id=request.group_id, correlation_id=request.correlation_id, request="", error_code=error_code
    )
