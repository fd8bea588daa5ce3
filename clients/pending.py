"""A client's requests that wait for answers, with no IO and no clock of their own.

Several clients may share a partition of the responses topic, and its writer is at-least-once. So most answers
are for other clients, and an answer to this client may come twice. Only the first answer counts.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import Struct

from state.errors import ErrorCode
from state.kafka.responses import AnyResponse as KafkaResponse
from state.messages import ErrorResponse, Response
from state.rocketmq.responses import AnyResponse as RocketMqResponse
from state.rocketmq.responses import Response as RocketMqResponseBase

# The number of request ids kept, to distinguish a duplicate from an answer to another client.
ANSWERED_MAX = 10_000

AnyResponse = KafkaResponse | RocketMqResponse

R = TypeVar("R", bound=Response | RocketMqResponseBase)


class ClientError(RuntimeError):
    """A request got no answer of its type. Each subclass is one reason."""


class CoordinatorError(ClientError):
    """The coordinator refused the request: it was malformed or misdirected, or the coordinator failed."""

    def __init__(self, kind: str, group_id: str, error_code: ErrorCode, message: str) -> None:
        super().__init__(f"{kind} for group {group_id!r} was refused with {error_code.name}: {message}")
        self.error_code = error_code


class RequestTimedOut(ClientError):
    """No answer came in time. The request is in the log, and the coordinator may still apply it."""


class RequestNotSent(ClientError):
    """The write of the request failed. Only the cause can show whether the request is in the log."""


class ClientClosed(ClientError):
    """The client was closed, or its reader ended, before the answer came."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request in flight.

    `kind` is its name for messages, `answer` the type of its response. `asked_at_s` is in seconds of the
    clock that `Pending.expire` gets; `timeout_ms` is in milliseconds.
    """

    kind: str
    group_id: str
    answer: type[Struct]
    asked_at_s: float
    timeout_ms: int
    future: Future[Any]

    @property
    def deadline_s(self) -> float:
        return self.asked_at_s + self.timeout_ms / 1000


@dataclass(slots=True)
class Counts:
    """Counts of the records of the reply partition.

    `duplicates` were repeated answers, `unknown` were for other clients, `malformed` could not be read.
    """

    answered: int = 0
    duplicates: int = 0
    unknown: int = 0
    malformed: int = 0


class Pending:
    """The requests in flight, by correlation id. Thread-safe; futures are resolved outside the lock."""

    def __init__(self, answered_max: int = ANSWERED_MAX) -> None:
        self.counts = Counts()
        self._lock = threading.Lock()
        self._in_flight: dict[str, PendingRequest] = {}
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._answered_max = answered_max
        self._closed: ClientClosed | None = None

    def __len__(self) -> int:
        return len(self._in_flight)

    def add(self, correlation_id: str, request: PendingRequest) -> None:
        """Add a request. Its future is marked as running, so it cannot be cancelled. Raises ClientClosed."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            request.future.set_running_or_notify_cancel()
            self._in_flight[correlation_id] = request

    def settle(self, response: AnyResponse) -> None:
        """Resolve the future of the request that this answers. Any other answer is dropped and counted."""
        with self._lock:
            request = self._in_flight.pop(response.correlation_id, None)
            if request is None:
                if response.request in self._answered:
                    self.counts.duplicates += 1
                else:
                    self.counts.unknown += 1
                return
            self.counts.answered += 1
            self._answered[response.request] = None
            if len(self._answered) > self._answered_max:
                self._answered.popitem(last=False)
        if isinstance(response, request.answer):
            request.future.set_result(response)
        else:
            request.future.set_exception(_refused(request, response))

    def fail(self, correlation_id: str, error: Exception) -> None:
        """Fail one request with RequestNotSent. Does nothing if the request is not in flight."""
        with self._lock:
            request = self._in_flight.pop(correlation_id, None)
        if request is not None:
            text = f"{request.kind} for group {request.group_id!r} could not be sent: {error!r}"
            failure = RequestNotSent(text)
            failure.__cause__ = error
            request.future.set_exception(failure)

    def expire(self, now_s: float) -> None:
        """Fail every request whose timeout has passed with RequestTimedOut."""
        with self._lock:
            late = [name for name, request in self._in_flight.items() if request.deadline_s <= now_s]
            expired = [self._in_flight.pop(name) for name in late]
        for request in expired:
            text = (
                f"{request.kind} for group {request.group_id!r} had no answer within {request.timeout_ms} ms"
            )
            request.future.set_exception(RequestTimedOut(text))

    def close(self, reason: str) -> None:
        """Fail all requests in flight, and all that are added later, with ClientClosed."""
        with self._lock:
            if self._closed is None:
                self._closed = ClientClosed(reason)
            left, self._in_flight = list(self._in_flight.values()), {}
        for request in left:
            text = f"{request.kind} for group {request.group_id!r} was not answered: {reason}"
            request.future.set_exception(ClientClosed(text))


def _refused(request: PendingRequest, response: AnyResponse) -> CoordinatorError:
    if isinstance(response, ErrorResponse):
        message = response.error_message
    else:
        message = f"the answer is a {type(response).__name__}, not a {request.answer.__name__}"
    code = response.error_code if isinstance(response, Response) else ErrorCode.UNKNOWN_SERVER_ERROR
    return CoordinatorError(request.kind, request.group_id, code, message)
