"""A client's requests that wait for answers, without IO and clock.

Several clients may share a partition of the responses topic. Most answers are there twice: early from a
replica, and later from the coordinator's query (`kafka_why.contract.early_answers`). Only the first answer to
a request of this client counts. `PendingRequests.awaits` recognizes all other answers without decoding them.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kafka_why.contract.kafka.responses import AnyResponse as KafkaResponse
from kafka_why.contract.messages import ErrorCode, ErrorResponse, Response
from kafka_why.contract.messages import Request as KafkaRequest
from kafka_why.contract.rocketmq.requests import UNANSWERED, Unanswered
from kafka_why.contract.rocketmq.requests import AnyResponse as RocketMqResponse
from kafka_why.contract.rocketmq.requests import Request as RocketMqRequest
from kafka_why.contract.rocketmq.requests import Response as RocketMqResponseBase
from kafka_why.topic_reader import ClientError

# The bytes before the correlation id in an encoded answer. Their first occurrence is the field: a JSON string
# cannot contain them, because its quotes are escaped, and no nested object precedes the field.
_CORRELATION_ID_KEY = b'"correlation_id":"'

R = TypeVar("R", bound=Response | RocketMqResponseBase)

AnyRequest: TypeAlias = KafkaRequest[R] | RocketMqRequest[R]
AnyResponse = KafkaResponse | RocketMqResponse


class CoordinatorError(ClientError):
    """The coordinator refused the request: it was malformed or misdirected, or the coordinator failed."""

    def __init__(self, kind: str, group_id: str, error_code: ErrorCode, message: str) -> None:
        super().__init__(f"{kind} for group {group_id!r} was refused with {error_code.name}: {message}")
        self.error_code = error_code


class RequestTimedOut(ClientError):
    """No answer arrived in time. The request is in the log, and the coordinator may still apply it."""


class RequestNotSent(ClientError):
    """The write failed. The request may be in the log nevertheless, unless the cause rules that out."""


class RequestTooLarge(RequestNotSent):
    """The request is too large for the requests topic. It was not sent, and would fail again.

    `size_bytes` and `max_bytes` are the size and the limit of the record, or of the client's frame if the
    request was not encoded as a record.
    """

    def __init__(self, message: str, size_bytes: int, max_bytes: int) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class ClientClosed(ClientError):
    """The client was closed, or its reader ended, before the answer came."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request in flight.

    Requests are settled, with an answer or an error, several at a time. `receive` is called once with all of
    them that have this receiver. It runs in the thread that settles them, so it must be short.

    A request that gets no answer (`UNANSWERED`) has a `record_id` instead of a correlation id. It is settled
    with None when it is in the log.
    """

    request: AnyRequest[Any] | Unanswered
    sent_at_s: float  # by the clock of `PendingRequests.expire`
    timeout_ms: int
    receive: "Receiver"
    record_id: str = ""  # "" for a request that gets an answer
    has_expired: bool = False
    is_rewritten: bool = False  # written again after the coordinator refused its pack

    @property
    def correlation_id(self) -> str:
        """The correlation id, or the `record_id` of a request that gets no answer."""
        return self.request.correlation_id if not isinstance(self.request, UNANSWERED) else self.record_id

    @property
    def deadline_s(self) -> float:
        return self.sent_at_s + self.timeout_ms / 1000

    def is_wanted(self) -> bool:
        """Return True if an unwritten request still has to be written: until it expires, or in a subclass,
        until its caller stops waiting. Any thread may call it.
        """
        return not self.has_expired

    def describe(self) -> str:
        """Return the request's type and group, for a message."""
        return f"{type(self.request).__name__} for group {self.request.group_id!r}"


@dataclass(slots=True, eq=False, kw_only=True)
class FutureRequest(PendingRequest):
    """A request whose outcome is a future."""

    future: Future[Any]


SettledRequest: TypeAlias = tuple[PendingRequest, AnyResponse | ClientError | None]
Receiver: TypeAlias = Callable[[Sequence[SettledRequest]], None]


def resolve_futures(outcomes: Sequence[SettledRequest]) -> None:
    """Resolve the futures of settled `FutureRequest`s. It is the `receive` of these requests."""
    for request, outcome in outcomes:
        assert isinstance(request, FutureRequest)
        if isinstance(outcome, ClientError):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)


class PendingRequests:
    """The requests in flight, by correlation id. Thread-safe; receivers are called outside the lock.

    Only this client's correlation ids start with `prefix`. They are ASCII without quotes and backslashes.
    """

    def __init__(self, prefix: str) -> None:
        self._encoded_prefix = prefix.encode()
        self._lock = threading.Lock()
        self._in_flight: dict[str, PendingRequest] = {}
        # The same requests by timeout. Those of one timeout expire in the order in which they were added, so
        # `expire` checks only the first of them.
        self._by_timeout_ms: defaultdict[int, OrderedDict[str, PendingRequest]] = defaultdict(OrderedDict)
        self._closed_error: ClientClosed | None = None

    def __len__(self) -> int:
        return len(self._in_flight)

    def add(self, requests: Iterable[PendingRequest]) -> None:
        """Add requests, or raise ClientClosed and add none."""
        with self._lock:
            if self._closed_error is not None:
                raise self._closed_error
            for request in requests:
                correlation_id = request.correlation_id
                self._in_flight[correlation_id] = request
                self._by_timeout_ms[request.timeout_ms][correlation_id] = request

    def awaits(self, encoded: bytes) -> bool:
        """Return True if a message of the reply partition has to be decoded, because it answers a request in
        flight or has no correlation id. All others are answers to other clients, or repeated or late ones.
        """
        key_at = encoded.find(_CORRELATION_ID_KEY)
        if key_at < 0:
            return True
        start = key_at + len(_CORRELATION_ID_KEY)
        if not encoded.startswith(self._encoded_prefix, start):
            return False
        end = encoded.find(b'"', start)
        return encoded[start:end].decode(errors="replace") in self._in_flight

    def settle(self, responses: Sequence[AnyResponse]) -> None:
        """Settle the requests that these responses answer. Drop all other responses."""
        with self._lock:
            outcomes: list[SettledRequest] = [
                (request, _outcome(request, response))
                for response in responses
                if (request := self._pop(response.correlation_id)) is not None
            ]
        _deliver(outcomes)

    def mark_rewritten(self, correlation_ids: Iterable[str]) -> list[PendingRequest]:
        """Mark and return the requests that have to be written again because the coordinator refused their
        pack, a record with several requests.

        A marked request is not returned again. A refusal may be read twice, and a JoinGroup that is written
        again twice would create a second member.
        """
        refused: list[PendingRequest] = []
        with self._lock:
            for correlation_id in correlation_ids:
                request = self._in_flight.get(correlation_id)
                if request is not None and not request.is_rewritten:
                    request.is_rewritten = True
                    refused.append(request)
        return refused

    def forget(self, request: PendingRequest) -> None:
        """Remove a request if its caller stops waiting. Its answer will be dropped."""
        with self._lock:
            self._pop(request.correlation_id)

    def settle_written(self, requests: Iterable[PendingRequest]) -> None:
        """Settle the requests that get no answer (those with a `record_id`), because they are in the log now.

        `requests` have been written. Those without a `record_id` still wait for their answers.
        """
        with self._lock:
            outcomes: list[SettledRequest] = [
                (request, None)
                for request in requests
                if request.record_id and self._pop(request.record_id) is not None
            ]
        _deliver(outcomes)

    def fail(self, requests: Iterable[PendingRequest], error: Exception) -> None:
        """Fail each of these requests that is in flight.

        The failure is `error` if it is a RequestNotSent, or else a RequestNotSent with `error` as its cause.
        """
        with self._lock:
            removed = [request for request in requests if self._pop(request.correlation_id)]
        outcomes: list[SettledRequest] = []
        for request in removed:
            if isinstance(error, RequestNotSent):
                failure = error
            else:
                failure = RequestNotSent(f"{request.describe()} could not be sent: {error!r}")
                failure.__cause__ = error
            outcomes.append((request, failure))
        _deliver(outcomes)

    def expire(self, now_s: float) -> None:
        """Fail with RequestTimedOut every request whose deadline is not after `now_s`."""
        expired: list[PendingRequest] = []
        with self._lock:
            for same_timeout in list(self._by_timeout_ms.values()):
                while same_timeout:
                    request = next(iter(same_timeout.values()))
                    if request.deadline_s > now_s:
                        break
                    self._pop(request.correlation_id)
                    request.has_expired = True
                    expired.append(request)
        _deliver(
            [(r, RequestTimedOut(f"{r.describe()} had no answer within {r.timeout_ms} ms")) for r in expired]
        )

    def close(self, reason: str) -> None:
        """Fail all requests in flight with ClientClosed. Later calls of `add` raise it."""
        with self._lock:
            if self._closed_error is None:
                self._closed_error = ClientClosed(reason)
            unanswered, self._in_flight = list(self._in_flight.values()), {}
            self._by_timeout_ms.clear()
        _deliver([(r, ClientClosed(f"{r.describe()} was not answered: {reason}")) for r in unanswered])

    def _pop(self, correlation_id: str) -> PendingRequest | None:
        """Remove and return the request with this id, or None if it is not in flight. The caller holds the
        lock.
        """
        request = self._in_flight.pop(correlation_id, None)
        if request is not None:
            same_timeout = self._by_timeout_ms[request.timeout_ms]
            del same_timeout[correlation_id]
            if not same_timeout:
                del self._by_timeout_ms[request.timeout_ms]
        return request


def _deliver(outcomes: Sequence[SettledRequest]) -> None:
    """Call each receiver once, with all its outcomes."""
    by_receiver: dict[Receiver, list[SettledRequest]] = {}
    for settled in outcomes:
        by_receiver.setdefault(settled[0].receive, []).append(settled)
    for receive, its_outcomes in by_receiver.items():
        receive(its_outcomes)


def _outcome(request: PendingRequest, response: AnyResponse) -> AnyResponse | CoordinatorError:
    """Return the response, or a CoordinatorError if it is an ErrorResponse or of another request's type."""
    assert not isinstance(request.request, UNANSWERED), "the request gets no answer"
    expected_type: type[AnyResponse] = request.request.response_type
    if isinstance(response, expected_type):
        return response
    if isinstance(response, ErrorResponse):
        message = response.error_message
    else:
        message = f"the answer is a {type(response).__name__}, not a {expected_type.__name__}"
    code = response.error_code if isinstance(response, Response) else ErrorCode.UNKNOWN_SERVER_ERROR
    return CoordinatorError(type(request.request).__name__, request.request.group_id, code, message)
