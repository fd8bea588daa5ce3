"""A client's requests that wait for answers, without IO and clock. Several clients may share a partition of
the responses topic, and most answers are there twice: early, and with the query's batch
(`kafka_why.contract.early_answers`). Only the first answer to a request of this client counts.
`PendingRequests.awaits` recognizes all other answers without decoding them.
"""

import threading
from collections import OrderedDict
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

# The field's bytes in an encoded answer. No JSON string contains them, because quotes are escaped, and no
# object precedes the correlation id.
_CORRELATION_ID = b'"correlation_id":"'

R = TypeVar("R", bound=Response | RocketMqResponseBase)

AnyRequest: TypeAlias = KafkaRequest[R] | RocketMqRequest[R]
AnyResponse = KafkaResponse | RocketMqResponse


class CoordinatorError(ClientError):
    """The coordinator refused the request: it was malformed or misdirected, or the coordinator failed."""

    def __init__(self, kind: str, group_id: str, error_code: ErrorCode, message: str) -> None:
        super().__init__(f"{kind} for group {group_id!r} was refused with {error_code.name}: {message}")
        self.error_code = error_code


class RequestTimedOut(ClientError):
    """No answer came in time. The request is in the log, and the coordinator may still apply it."""


class RequestNotSent(ClientError):
    """The write of the request failed. The request may still be in the log: only the cause can rule that
    out.
    """


class RequestTooLarge(RequestNotSent):
    """The request is too large for the requests topic. It was not sent, and would fail again.

    `size_bytes` and `max_bytes` are the size and the limit of the record, or of the frame if the request was
    not encoded.
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

    `receive` gets the outcomes of all requests with this receiver that are settled at the same time. It runs
    in the settling thread, so it must be short. A request that gets no answer has a `record_id` instead of a
    correlation id. Its outcome is None when it is in the log.
    """

    request: AnyRequest[Any] | Unanswered
    asked_at_s: float  # by the clock of `PendingRequests.expire`
    timeout_ms: int
    receive: "Receiver"
    record_id: str = ""
    has_expired: bool = False
    is_written_again: bool = False

    @property
    def correlation_id(self) -> str:
        """The id of the request while it is in flight."""
        return self.request.correlation_id if not isinstance(self.request, UNANSWERED) else self.record_id

    @property
    def deadline_s(self) -> float:
        return self.asked_at_s + self.timeout_ms / 1000

    def is_wanted(self) -> bool:
        """Return True if an unwritten request still has to be written. Any thread may call it."""
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
    """Settle the futures of `FutureRequest`s, as their receiver."""
    for request, outcome in outcomes:
        assert isinstance(request, FutureRequest)
        if isinstance(outcome, ClientError):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)


@dataclass(slots=True)
class MessageCounts:
    """Counts of the messages of the reply partition."""

    answered: int = 0
    duplicates: int = 0  # repeated or late answers: the request was no longer in flight
    unknown: int = 0  # answers to other clients
    malformed: int = 0  # could not be decoded


class PendingRequests:
    """The requests in flight, by correlation id. Thread-safe; receivers are called outside the lock.

    Only this client's correlation ids start with `prefix`. They are ASCII without quotes and backslashes.
    """

    def __init__(self, prefix: str) -> None:
        self.counts = MessageCounts()
        self._prefix = prefix
        self._encoded_prefix = prefix.encode()
        self._lock = threading.Lock()
        self._in_flight: dict[str, PendingRequest] = {}
        # The same requests by timeout, in the order of their start, so that `expire` has to check only the
        # first request of each timeout.
        self._by_timeout_ms: dict[int, OrderedDict[str, PendingRequest]] = {}
        self._closed: ClientClosed | None = None

    def __len__(self) -> int:
        return len(self._in_flight)

    def add(self, requests: Iterable[PendingRequest]) -> None:
        """Add requests, or raise ClientClosed and add none."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            for request in requests:
                correlation_id = request.correlation_id
                self._in_flight[correlation_id] = request
                of_timeout = self._by_timeout_ms.get(request.timeout_ms)
                if of_timeout is None:
                    of_timeout = self._by_timeout_ms[request.timeout_ms] = OrderedDict()
                of_timeout[correlation_id] = request

    def awaits(self, encoded: bytes) -> bool:
        """Return True if a message of the reply partition has to be decoded, and count all others.

        It answers a request in flight or has no correlation id.
        """
        at = encoded.find(_CORRELATION_ID)
        if at < 0:
            return True
        at += len(_CORRELATION_ID)
        if not encoded.startswith(self._encoded_prefix, at):
            self.counts.unknown += 1
            return False
        correlation_id = encoded[at : encoded.find(b'"', at)].decode(errors="replace")
        if correlation_id in self._in_flight:
            return True
        self.counts.duplicates += 1
        return False

    def settle(self, responses: Sequence[AnyResponse]) -> None:
        """Settle the requests that these responses answer. Drop and count all other responses."""
        if not responses:
            return
        outcomes: list[SettledRequest] = []
        with self._lock:
            for response in responses:
                request = self._pop(response.correlation_id)
                if request is not None:
                    self.counts.answered += 1
                    outcomes.append((request, _outcome(request, response)))
                elif response.correlation_id.startswith(self._prefix):
                    self.counts.duplicates += 1
                else:
                    self.counts.unknown += 1
        _deliver(outcomes)

    def to_write_again(self, correlation_ids: Iterable[str]) -> list[PendingRequest]:
        """Return those of these requests that are in flight, and that no earlier call has returned.

        A refusal may be read twice, and a JoinGroup that is written again twice would create a second member.
        """
        found: list[PendingRequest] = []
        with self._lock:
            for correlation_id in correlation_ids:
                request = self._in_flight.get(correlation_id)
                if request is not None and not request.is_written_again:
                    request.is_written_again = True
                    found.append(request)
        return found

    def forget(self, request: PendingRequest) -> None:
        """Remove a request whose caller no longer waits. Its answer will be dropped."""
        with self._lock:
            self._pop(request.correlation_id)

    def settle_written(self, requests: Iterable[PendingRequest]) -> None:
        """Settle those of these requests that get no answers. They are in the log now."""
        with self._lock:
            outcomes: list[SettledRequest] = [
                (request, None)
                for request in requests
                if request.record_id and self._pop(request.record_id) is not None
            ]
        _deliver(outcomes)

    def fail(self, requests: Iterable[PendingRequest], error: Exception) -> None:
        """Fail those of these requests that are in flight.

        They fail with `error` if it is a RequestNotSent, else with a RequestNotSent whose cause is `error`.
        """
        with self._lock:
            failed = [request for request in requests if self._pop(request.correlation_id)]
        outcomes: list[SettledRequest] = []
        for request in failed:
            if isinstance(error, RequestNotSent):
                failure = error
            else:
                failure = RequestNotSent(f"{request.describe()} could not be sent: {error!r}")
                failure.__cause__ = error
            outcomes.append((request, failure))
        _deliver(outcomes)

    def expire(self, now_s: float) -> None:
        """Fail every request whose timeout has passed with RequestTimedOut."""
        expired: list[PendingRequest] = []
        with self._lock:
            for of_timeout in list(self._by_timeout_ms.values()):
                while of_timeout:
                    request = next(iter(of_timeout.values()))
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
            if self._closed is None:
                self._closed = ClientClosed(reason)
            left, self._in_flight = list(self._in_flight.values()), {}
            self._by_timeout_ms.clear()
        _deliver([(r, ClientClosed(f"{r.describe()} was not answered: {reason}")) for r in left])

    def _pop(self, correlation_id: str) -> PendingRequest | None:
        """Remove and return a request that is in flight. The caller holds the lock."""
        request = self._in_flight.pop(correlation_id, None)
        if request is not None:
            of_timeout = self._by_timeout_ms[request.timeout_ms]
            del of_timeout[correlation_id]
            if not of_timeout:
                del self._by_timeout_ms[request.timeout_ms]
        return request


def _deliver(outcomes: Sequence[SettledRequest]) -> None:
    by_receiver: dict[Receiver, list[SettledRequest]] = {}
    for outcome in outcomes:
        by_receiver.setdefault(outcome[0].receive, []).append(outcome)
    for receive, received in by_receiver.items():
        receive(received)


def _outcome(request: PendingRequest, response: AnyResponse) -> AnyResponse | CoordinatorError:
    assert not isinstance(request.request, UNANSWERED), "no answer has its record id"
    answer: type[AnyResponse] = request.request.answer
    if isinstance(response, answer):
        return response
    if isinstance(response, ErrorResponse):
        message = response.error_message
    else:
        message = f"the answer is a {type(response).__name__}, not a {answer.__name__}"
    code = response.error_code if isinstance(response, Response) else ErrorCode.UNKNOWN_SERVER_ERROR
    return CoordinatorError(type(request.request).__name__, request.request.group_id, code, message)
