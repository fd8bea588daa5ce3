"""The coordinator as the gateway sees it: ask, and there is always an answer."""

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

from gateway.limits import Limits
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

    async def ask(self, request: AnyRequest, answer: type[R], timeout_ms: int | None = None) -> R:
        """The answer. Where there is none it has an error code alone, and a log line says why.

        With `timeout_ms` None it is waited for only as long as the member that asks can be held up without
        risk to its session: see `Patience`.
        """


class Patience:
    """How long a member's request is held: `least_ms`, or twice as long as the last answer took.

    A member sends nothing while it is held, so a coordinator that is away must not hold it for long. One that
    is slow has to be waited for, or no member would ever hear of a rebalance. See docs/decisions/0009.
    """

    def __init__(self, least_ms: int) -> None:
        self._least_ms = least_ms
        self.bound_ms = least_ms

    def learn(self, took_ms: int) -> None:
        """An answer came, be it too late for the member that asked."""
        self.bound_ms = min(max(self._least_ms, 2 * took_ms), ANSWER_TIMEOUT_MS)


class CoordinatorBackend:
    """Requests go onto the coordinator's topic, answers come from this gateway's own reply partition.

    Several gateways may share a reply partition: correlation ids are unique for each start of a client, and
    what answers somebody else's request is dropped.
    """

    def __init__(self, client: CoordinatorClient, limits: Limits) -> None:
        self._client = client
        self._patience = Patience(round(limits.member_held_s * 1000))
        # Sending may wait for a broker, which the event loop must not.
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gateway-sender")

    def header(self, group_id: str, api_version: int, client_id: str, client_host: str) -> Header:
        """See `Backend`."""
        own = self._client.header(group_id, api_version)
        return {**own, "client_id": client_id, "client_host": client_host}

    async def ask(self, request: AnyRequest, answer: type[R], timeout_ms: int | None = None) -> R:
        """See `Backend`. When it is cancelled, the answer is dropped as it comes."""
        held_ms = self._patience.bound_ms if timeout_ms is None else timeout_ms
        try:
            sent = await self._send(request, answer, timeout_ms or ANSWER_TIMEOUT_MS)
            async with asyncio.timeout(held_ms / 1000):
                return await asyncio.wrap_future(sent)
        except TimeoutError:
            why = f"{type(request).__name__} for group {request.group_id!r} was held for {held_ms} ms"
            log.warning("no answer from the coordinator", error=why)
            return failed(request, answer, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except ClientError as error:
            if not isinstance(error, ClientClosed):
                log.warning("no answer from the coordinator", error=str(error))
            return failed(request, answer, error_code_of(error))

    async def _send(self, request: AnyRequest, answer: type[R], timeout_ms: int) -> Future[R]:
        asked_s = time.monotonic()
        sent = await asyncio.get_running_loop().run_in_executor(
            self._sender, lambda: self._client.send(request, answer, timeout_ms=timeout_ms)
        )
        if timeout_ms <= ANSWER_TIMEOUT_MS:  # what may be parked says nothing of how long an answer takes
            sent.add_done_callback(lambda done: self._learn(done, asked_s))
        return sent

    def _learn(self, done: Future[R], asked_s: float) -> None:
        """Called by the client's reader, also for an answer that comes too late for who asked."""
        if done.exception() is None:
            self._patience.learn(round((time.monotonic() - asked_s) * 1000))

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
