"""Requests from the gateway to the coordinator, which reads them from the requests topic.

The gateway *holds* a member's request until the coordinator answers. If that takes too long, the gateway
itself answers with an error, so each request gets a response. The coordinator *parks* some requests: it
answers a JoinGroup when the other members have joined, and a SyncGroup when the leader has sent the
assignment.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from clients.coordinator_client import CoordinatorClient, Header
from clients.pending import (
    AnyRequest,
    AnyResponse,
    ClientClosed,
    PendingRequest,
    R,
    RequestTooLarge,
    SettledRequest,
)
from gateway.coordinator.failures import error_code_of, error_response, refuse_oversized
from gateway.limits import Limits
from gateway.log_text import RateLimitedWarning, quoted
from gateway.metrics.numbers import DurationHistogram
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.rocketmq.requests import UNANSWERED, Unanswered
from kafka_why.topic_reader import ClientError

# docs/decisions/0009 explains the time for which the gateway holds a member's request.

# A request is held for this many times as long as the slowest recent answer took. The coordinator answers in
# batches, which grow when it is overloaded: at twice the rate that it sustains, each batch takes twice the
# time of the previous one.
_MARGIN = 3.0
# The time of the slowest recent answer decays with this half-life.
_HALF_LIFE_S = 5.0


H = TypeVar("H", bound=PendingRequest)


class AdaptiveTimeout:
    """The time for which a member's request is held.

    It is three times as long as the slowest recent answer took, but at least `least_ms` and at most
    `most_ms`. A member sends nothing while its request is held, so an absent coordinator must not delay it
    for long. A slow coordinator must have time, or no member would learn of a rebalance.
    """

    def __init__(self, least_ms: int, most_ms: int) -> None:
        self._least_s = least_ms / 1000
        self._most_s = most_ms / 1000
        self._slowest_s = 0.0
        self._recorded_at_s = 0.0

    def record(self, took_s: float, now_s: float) -> None:
        """Record how long an answer took, even if it came too late for the member."""
        decayed_s = self._slowest_s * 0.5 ** ((now_s - self._recorded_at_s) / _HALF_LIFE_S)
        self._slowest_s, self._recorded_at_s = max(took_s, decayed_s), now_s

    @property
    def current_s(self) -> float:
        """The time for which requests are held now."""
        return min(max(self._least_s, _MARGIN * self._slowest_s), self._most_s)


@dataclass(slots=True, eq=False)
class HeldRequests(Generic[H]):
    """Requests that are held until the coordinator answers, in the order in which they were sent. Times are
    in seconds.
    """

    timeout: AdaptiveTimeout
    _held: deque[H] = field(default_factory=deque)

    def hold(self, request: H) -> None:
        """Hold the request that was sent last."""
        self._held.append(request)

    def give_up(self, now_s: float) -> Iterator[H]:
        """Remove and yield the requests that were held for too long."""
        timeout_s = self.timeout.current_s
        while (first := self.first()) is not None and first.sent_at_s + timeout_s <= now_s:
            yield self._held.popleft()

    def first(self) -> H | None:
        """Return the request that has been held longest, or None if none is held. Drop earlier requests that
        are answered or whose caller has gone.
        """
        held = self._held
        while held and not held[0].is_wanted():
            held.popleft()
        return held[0] if held else None

    def check_at_s(self) -> float | None:
        """Return the earliest time at which a held request may be given up, or None if none is held."""
        first = self.first()
        return None if first is None else first.sent_at_s + self.timeout.current_s


# Less than clients' 30 s (request.timeout.ms), so that they get a response.
ANSWER_TIMEOUT_MS = 25_000
# A JoinGroup or SyncGroup is parked for as long as the group's slowest member may take, which the gateway
# does not know. The coordinator's deadlines end the wait. This limit is for the case that no coordinator
# runs.
PARKED_TIMEOUT_MS = 600_000
# The coordinator parks a request that waits for the cluster's share coordinator for at most 60 s.
SHARE_STATE_TIMEOUT_MS = 60_000 + ANSWER_TIMEOUT_MS

# The minimum time between two checks of the held requests.
_CHECK_PAUSE_MIN_S = 0.01


class _ResponseFuture(asyncio.Future[Any]):
    """The future of a response. Its cancellation makes the backend forget the request."""

    __slots__ = ("backend", "waiting")
    backend: "CoordinatorBackend"
    waiting: "_WaitingRequest | None"

    def cancel(self, msg: Any = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.waiting is not None:
            # Otherwise the request would be stored until its timeout. For a JoinGroup the client may choose
            # a very long one.
            self.backend.forget(self.waiting)
            self.waiting = None
        return is_cancelled


@dataclass(slots=True, eq=False, kw_only=True)
class _WaitingRequest(PendingRequest):
    """A request, and the future of its response."""

    response: _ResponseFuture  # belongs to the event loop; done when no caller waits any more

    def is_wanted(self) -> bool:
        return not self.response.done()


class CoordinatorBackend:
    """A backend that appends requests to the requests topic and reads the responses from its reply partition,
    a partition of the responses topic.

    Several gateways may share a reply partition. Correlation ids are unique for each start of a client, so
    each gateway recognizes and drops the responses to other gateways' requests. All methods but `close`
    belong to the event loop.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        limits: Limits,
        durations: defaultdict[str, DurationHistogram] | None = None,
    ) -> None:
        self._client = client
        self._durations = defaultdict(DurationHistogram) if durations is None else durations
        self.answered_at_s = -math.inf
        """When the coordinator last answered a request, in seconds of `time.monotonic`."""
        timeout = AdaptiveTimeout(round(limits.member_held_s * 1000), ANSWER_TIMEOUT_MS)
        self._held: HeldRequests[_WaitingRequest] = HeldRequests(timeout)
        self._timer: asyncio.TimerHandle | None = None
        """The only timer of all held requests, or None if no request is held."""
        self._unanswered_warning = RateLimitedWarning()
        self._oversized_warning = RateLimitedWarning("a request is too large", "requests")
        # The requests of one turn of the event loop are sent together.
        self._unsent: list[_WaitingRequest] = []
        self._has_forgotten = False
        """True if `forget` may have been called for a request of `_unsent`."""
        # All outcomes that arrive between two turns of the loop wake it once.
        self._outcomes: deque[Sequence[SettledRequest]] = deque()
        self._is_dispatch_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def header(
        self, group_id: str, api_version: int, client_id: str, client_host: str, principal: str
    ) -> Header:
        """Return the header of a request, with the reply partition and the next correlation id of the
        client.
        """
        return Header(
            group_id=group_id,
            correlation_id=self._client.next_correlation_id(),
            reply_partition=self._client.reply_partition,
            api_version=api_version,
            client_id=client_id,
            client_host=client_host,
            principal=principal,
        )

    async def ask(self, request: AnyRequest[R], timeout_ms: int | None = None) -> R:
        """Send a request and return the response. A response that comes after cancellation is dropped."""
        return await self.send(request, timeout_ms)

    def send(self, request: AnyRequest[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        """Send a request, and return the future of its response, which gets a result unless it is
        cancelled. If `timeout_ms` is None, the request is held for as long as `AdaptiveTimeout` allows.
        """
        waiting = self._add(request, timeout_ms or ANSWER_TIMEOUT_MS)
        if timeout_ms is None:
            self._held.hold(waiting)
            if self._timer is None:
                self._check_held()
        return waiting.response

    def append(self, record: Unanswered) -> asyncio.Future[bool]:
        """Append a record that gets no answer.

        The future's result is True when the record is in the log, or False if that failed.
        """
        return self._add(record, ANSWER_TIMEOUT_MS, self._client.next_correlation_id()).response

    def _add(
        self, request: AnyRequest[Any] | Unanswered, timeout_ms: int, record_id: str = ""
    ) -> "_WaitingRequest":
        """Queue a request. The requests of one turn of the event loop are sent together."""
        if not self._unsent:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush)
        assert self._loop is not None, "the first request has set it"
        response = _ResponseFuture(loop=self._loop)
        waiting = _WaitingRequest(
            request, time.monotonic(), timeout_ms, self._receive, record_id, response=response
        )
        response.backend, response.waiting = self, waiting
        self._unsent.append(waiting)
        return waiting

    def _flush(self) -> None:
        """Send the requests of this turn of the event loop, without waiting for a broker."""
        requests, self._unsent = self._unsent, []
        if self._has_forgotten:
            requests = [request for request in requests if request.is_wanted()]
            self._has_forgotten = False
        try:
            self._client.send_all(requests)
        except Exception as error:  # noqa: BLE001 - the waiting callers must get any error
            failure = error if isinstance(error, ClientError) else ClientError(repr(error))
            self._receive([(request, failure) for request in requests])

    def _check_held(self) -> None:
        """Give up the requests that have been held for too long, and set the timer for the next check."""
        assert self._loop is not None
        now_s = time.monotonic()
        for waiting in self._held.give_up(now_s):
            held_ms = round((now_s - waiting.sent_at_s) * 1000)
            api, group_id = type(waiting.request).__name__, quoted(waiting.request.group_id)
            self._unanswered_warning.add(error=f"{api} for group {group_id} was held for {held_ms} ms")
            self._fail(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        check_at_s = self._held.check_at_s()
        if check_at_s is None:
            self._timer = None
        else:
            self._timer = self._loop.call_later(max(check_at_s - now_s, _CHECK_PAUSE_MIN_S), self._check_held)

    def _receive(self, outcomes: Sequence[SettledRequest]) -> None:
        """Queue outcomes for the event loop. Any thread may call this, even after a request was given up."""
        self._outcomes.append(outcomes)
        if not self._is_dispatch_scheduled and self._loop is not None:
            self._is_dispatch_scheduled = True
            with suppress(RuntimeError):  # the loop has ended, and every waiting request with it
                self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        """Settle the requests whose outcomes have arrived."""
        self._is_dispatch_scheduled = False  # before the drain, so that later outcomes wake the loop again
        now_s = time.monotonic()
        slowest_s = 0.0
        while self._outcomes:
            for waiting, outcome in self._outcomes.popleft():
                assert isinstance(waiting, _WaitingRequest)
                if isinstance(outcome, ClientError):
                    self._end_with_error(waiting, outcome)
                    continue
                if outcome is None:  # the record of an `append` is in the log
                    self._settle(waiting, outcome=True)
                    continue
                self.answered_at_s = now_s
                # The time of a request that may be parked does not show how fast the coordinator is.
                may_be_parked = waiting.timeout_ms > ANSWER_TIMEOUT_MS
                if not may_be_parked:
                    took_s = now_s - waiting.sent_at_s
                    slowest_s = max(slowest_s, took_s)
                    self._durations[type(waiting.request).__name__].add(took_s)
                self._settle(waiting, outcome)
        if slowest_s:
            self._held.timeout.record(slowest_s, now_s)
        self._held.first()  # drops answered requests

    def _end_with_error(self, waiting: _WaitingRequest, error: ClientError) -> None:
        """End a request that got an error instead of a response."""
        if waiting.response.done():
            return
        if isinstance(error, RequestTooLarge) and not isinstance(waiting.request, UNANSWERED):
            refusal = self.refuse(waiting.request, error)
            refusal.add_done_callback(lambda done: self._settle(waiting, done.result()))
            return
        error_code = error_code_of(error)
        if not isinstance(error, ClientClosed):
            self._unanswered_warning.add(error=str(error), answer=error_code.name)
        self._fail(waiting, error_code)

    def refuse(self, request: AnyRequest[R], error: RequestTooLarge) -> asyncio.Future[R]:
        """Return the response to a request that is too large for the requests topic."""
        self._oversized_warning.add(error=str(error), size_bytes=error.size_bytes, max_bytes=error.max_bytes)
        return refuse_oversized(self, request, error)

    def _fail(self, waiting: _WaitingRequest, error_code: ErrorCode) -> None:
        """Settle a request with an error response, or the record of an `append` with False."""
        request = waiting.request
        if isinstance(request, UNANSWERED):
            self._settle(waiting, outcome=False)
        else:
            self._settle(waiting, error_response(request, error_code))

    def _settle(self, waiting: _WaitingRequest, outcome: AnyResponse | bool) -> None:
        """Set the result of a request's future, unless the future is already done."""
        if not waiting.response.done():
            waiting.response.waiting = None  # a reference cycle would delay the release of the memory
            waiting.response.set_result(outcome)

    def forget(self, waiting: _WaitingRequest) -> None:
        """Forget a request whose caller no longer waits."""
        self._has_forgotten = True
        self._client.forget(waiting)

    def close(self) -> None:
        """Stop checking the held requests. The owner of the client closes the client after this."""
        if self._timer is not None:
            self._timer.cancel()
