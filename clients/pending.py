"""Requests that wait for their answers: a client's book-keeping, with no IO and no clock of its own.

The responses topic is read by everyone who shares a partition of it, and its writer is at-least-once. So
most of what comes is for others, and what is ours may come twice: only the first answer is taken.
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

# How many answers are remembered, to tell a duplicate from an answer for somebody else.
ANSWERED_MAX = 10_000

AnyResponse = KafkaResponse | RocketMqResponse

R = TypeVar("R", bound=Response | RocketMqResponseBase)


class ClientError(RuntimeError):
    """A request got no answer of its kind; the subclasses say why."""


class CoordinatorError(ClientError):
    """The coordinator refused the request as a whole: malformed, misdirected, or a fault of its own."""

    def __init__(self, kind: str, group_id: str, error_code: ErrorCode, message: str) -> None:
        super().__init__(f"{kind} for group {group_id!r} was refused with {error_code.name}: {message}")
        self.error_code = error_code


class RequestTimedOut(ClientError):
    """No answer came in time. The request stands in the log and may still be worked off."""


class RequestNotSent(ClientError):
    """The request could not be written; whether it is in the log is known only where the cause says so."""


class ClientClosed(ClientError):
    """The client was closed, or its reader ended, with the request unanswered."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that was sent. `kind` is its name, for messages; `answer` the type its response has."""

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
    """What came over the reply partition."""

    answered: int = 0
    duplicates: int = 0
    unknown: int = 0
    malformed: int = 0


class Pending:
    """The requests under way, by correlation id. Safe for threads; futures are resolved outside its lock."""

    def __init__(self, answered_max: int = ANSWERED_MAX) -> None:
        self.counts = Counts()
        self._lock = threading.Lock()
        self._asked: dict[str, PendingRequest] = {}
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._answered_max = answered_max
        self._closed: ClientClosed | None = None

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, correlation_id: str, asked: PendingRequest) -> None:
        """Begin to wait. The future is marked as running: an answer under way cannot be cancelled."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            asked.future.set_running_or_notify_cancel()
            self._asked[correlation_id] = asked

    def settle(self, response: AnyResponse) -> None:
        """Resolve the future this answers; anything else is dropped and counted."""
        with self._lock:
            asked = self._asked.pop(response.correlation_id, None)
            if asked is None:
                if response.request in self._answered:
                    self.counts.duplicates += 1
                else:
                    self.counts.unknown += 1
                return
            self.counts.answered += 1
            self._answered[response.request] = None
            if len(self._answered) > self._answered_max:
                self._answered.popitem(last=False)
        if isinstance(response, asked.answer):
            asked.future.set_result(response)
        else:
            asked.future.set_exception(_refused(asked, response))

    def fail(self, correlation_id: str, error: Exception) -> None:
        """Give up on one request; nothing if it is not waited for any more."""
        with self._lock:
            asked = self._asked.pop(correlation_id, None)
        if asked is not None:
            text = f"{asked.kind} for group {asked.group_id!r} could not be sent: {error!r}"
            failure = RequestNotSent(text)
            failure.__cause__ = error
            asked.future.set_exception(failure)

    def expire(self, now_s: float) -> None:
        """Give up on every request whose time is over."""
        with self._lock:
            late = [name for name, asked in self._asked.items() if asked.deadline_s <= now_s]
            expired = [self._asked.pop(name) for name in late]
        for asked in expired:
            text = f"{asked.kind} for group {asked.group_id!r} had no answer within {asked.timeout_ms} ms"
            asked.future.set_exception(RequestTimedOut(text))

    def close(self, reason: str) -> None:
        """Fail everything that waits, and everything that is added later."""
        with self._lock:
            if self._closed is None:
                self._closed = ClientClosed(reason)
            left, self._asked = list(self._asked.values()), {}
        for asked in left:
            text = f"{asked.kind} for group {asked.group_id!r} was not answered: {reason}"
            asked.future.set_exception(ClientClosed(text))


def _refused(asked: PendingRequest, response: AnyResponse) -> CoordinatorError:
    if isinstance(response, ErrorResponse):
        message = response.error_message
    else:
        message = f"the answer is a {type(response).__name__}, not a {asked.answer.__name__}"
    code = response.error_code if isinstance(response, Response) else ErrorCode.UNKNOWN_SERVER_ERROR
    return CoordinatorError(asked.kind, asked.group_id, code, message)
