"""Requests from the gateway to the coordinator. Each of them ends with a response."""

import asyncio
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

from clients.coordinator_client import CoordinatorClient, Header
from clients.pending import ClientClosed, ClientError, CoordinatorError
from gateway.coordinator.rate_limited_warning import RateLimitedWarning
from gateway.wire.limits import Limits
from gateway.wire.log_text import quoted
from state.errors import ErrorCode
from state.kafka.requests import AnyAnswered
from state.messages import Response

# Less than the 30 s that clients give a request (request.timeout.ms), so that they get a response.
ANSWER_TIMEOUT_MS = 25_000
# A JoinGroup or SyncGroup is parked for as long as the group's slowest member may take, and the gateway does
# not know that time. The coordinator's own deadlines end it. This bound covers the case that no coordinator
# runs.
PARKED_TIMEOUT_MS = 600_000

R = TypeVar("R", bound=Response)


class Backend(Protocol):
    """Answers requests about groups."""

    def header(self, group_id: str, api_version: int, client_id: str, client_host: str) -> Header:
        """The header of a request about this group, with a new correlation id."""

    async def ask(self, request: AnyAnswered, answer: type[R], timeout_ms: int | None = None) -> R:
        """Return the response. If none comes, it has only an error code, and a log line has the reason.

        With `timeout_ms` None the request waits only as long as the member can be held without risk to its
        session: see `AdaptiveTimeout`.
        """


class AdaptiveTimeout:
    """How long a member's request is held: `least_ms`, or twice the time of the last response.

    A member sends nothing while it is held, so an absent coordinator must not hold it for long. A slow
    coordinator must be waited for, because otherwise no member would learn of a rebalance. See
    docs/decisions/0009.
    """

    def __init__(self, least_ms: int) -> None:
        self._least_ms = least_ms
        self.bound_ms = least_ms

    def learn(self, took_ms: int) -> None:
        """Record the time of a response, even if it came too late for the member."""
        self.bound_ms = min(max(self._least_ms, 2 * took_ms), ANSWER_TIMEOUT_MS)


@dataclass(frozen=True, slots=True, eq=False)
class _PendingRequest:
    """A request under way. `answered` belongs to the event loop, and is done when nothing waits for it."""

    request: AnyAnswered
    answer: type[Response]
    timeout_ms: int
    started_at_s: float
    answered: asyncio.Future[Any]

    def give_up(self) -> None:
        if not self.answered.done():
            self.answered.set_exception(TimeoutError())


class CoordinatorBackend:
    """Appends requests to the requests topic and reads responses from this gateway's reply partition.

    Several gateways may share a reply partition: correlation ids are unique for each start of a client, and
    each gateway drops the responses to others' requests.
    """

    def __init__(self, client: CoordinatorClient, limits: Limits) -> None:
        self._client = client
        self._held_timeout = AdaptiveTimeout(round(limits.member_held_s * 1000))
        self._unanswered_warning = RateLimitedWarning()
        # The sender is woken once for all requests of one turn of the event loop.
        self._unsent: list[_PendingRequest] = []
        self._to_send: SimpleQueue[list[_PendingRequest] | None] = SimpleQueue()
        # The loop is woken once for all responses that come between two of its turns.
        self._answers: deque[tuple[_PendingRequest, Future[Any]]] = deque()
        self._is_woken = False
        # Sending may block until a broker answers, so it has a thread outside the event loop.
        self._sender = Thread(target=self._send_all, name="gateway-sender", daemon=True)
        self._sender.start()

    def header(self, group_id: str, api_version: int, client_id: str, client_host: str) -> Header:
        """See `Backend`."""
        own = self._client.header(group_id, api_version)
        return {**own, "client_id": client_id, "client_host": client_host}

    async def ask(self, request: AnyAnswered, answer: type[R], timeout_ms: int | None = None) -> R:
        """See `Backend`. A response that comes after cancellation is dropped."""
        loop = asyncio.get_running_loop()
        held_ms = self._held_timeout.bound_ms if timeout_ms is None else timeout_ms
        waited_ms = timeout_ms or ANSWER_TIMEOUT_MS
        waiting = _PendingRequest(request, answer, waited_ms, time.monotonic(), loop.create_future())
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append(waiting)
        timer = loop.call_later(held_ms / 1000, waiting.give_up)
        try:
            answered: R = await waiting.answered
            return answered
        except TimeoutError:
            kind, group_id = type(request).__name__, quoted(request.group_id)
            self._unanswered_warning.add(error=f"{kind} for group {group_id} was held for {held_ms} ms")
            return failed(request, answer, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except ClientError as error:
            if not isinstance(error, ClientClosed):
                self._unanswered_warning.add(error=str(error))
            return failed(request, answer, error_code_of(error))
        finally:
            timer.cancel()

    def _flush(self) -> None:
        self._to_send.put(self._unsent)
        self._unsent = []

    def _send_all(self) -> None:
        while (several := self._to_send.get()) is not None:
            for waiting in several:
                if not waiting.answered.done():
                    self._send(waiting)

    def _send(self, waiting: _PendingRequest) -> None:
        sent: Future[Any]
        try:
            sent = self._client.send(waiting.request, waiting.answer, timeout_ms=waiting.timeout_ms)
        except Exception as error:  # noqa: BLE001 - the waiting caller must get any error
            sent = Future()
            sent.set_exception(error)
        sent.add_done_callback(partial(self._on_response, waiting))

    def _on_response(self, waiting: _PendingRequest, sent: Future[Any]) -> None:
        """Called by any thread, also for a response that comes after the timeout of its request."""
        self._answers.append((waiting, sent))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended, and every waiting request with it
                waiting.answered.get_loop().call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        self._is_woken = False  # before the drain: a response that comes from now on wakes the loop again
        while self._answers:
            waiting, sent = self._answers.popleft()
            error = sent.exception()
            if error is None:
                self._learn(waiting)
            if waiting.answered.done():
                continue
            if error is None:
                waiting.answered.set_result(sent.result())
            else:
                waiting.answered.set_exception(error)

    def _learn(self, waiting: _PendingRequest) -> None:
        # A parked request does not show how long a response takes.
        if waiting.timeout_ms <= ANSWER_TIMEOUT_MS:
            self._held_timeout.learn(round((time.monotonic() - waiting.started_at_s) * 1000))

    def close(self) -> None:
        """End the sender. The owner of the client closes the client after this."""
        self._to_send.put(None)
        self._sender.join()


def error_code_of(error: ClientError) -> ErrorCode:
    """The coordinator's refusal, else COORDINATOR_NOT_AVAILABLE: clients then find it again."""
    if isinstance(error, CoordinatorError):
        return error.error_code
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def failed(request: AnyAnswered, answer: type[R], error_code: ErrorCode) -> R:
    """A response that has only an error code."""
    return answer(
        group_id=request.group_id, correlation_id=request.correlation_id, request="", error_code=error_code
    )
