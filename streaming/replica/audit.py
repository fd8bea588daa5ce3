"""The audit compares each early answer with the query's answer to the same request.

No IO and no clock. Safe for threads.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

# The limits of stored answers of the query that the replica has not given yet.
QUERY_ANSWERS_MAX = 20_000
QUERY_ANSWERS_MAX_BYTES = 32 * 1024 * 1024
# An early answer is overdue if the query has not answered this long after the batch that read the request.
OVERDUE_AFTER_S = 5.0

# JSON escapes quotes within strings, so these bytes are the names of fields. Every response has both, in this
# order. Messages to connections of RocketMQ's clients, which answer nothing, have no correlation id.
_CORRELATION_ID = b'"correlation_id":"'
_REQUEST = b'"request":"'


class ReplicaPosition(NamedTuple):
    """The position in the log at which early answers were given.

    All records before `offsets` were applied, by partition, and all deadlines up to `as_of_ms` were fired.
    """

    offsets: Mapping[int, int]
    as_of_ms: int

    def is_before(self, other: "ReplicaPosition") -> bool:
        """Return True if no part of this position is after the other one."""
        if self.as_of_ms > other.as_of_ms:
            return False
        return all(offset <= other.offsets.get(number, 0) for number, offset in self.offsets.items())


class AnswerDifference(Struct, frozen=True):
    """An early answer that differs from the query's. `query` is None if the query gave no answer."""

    request: str
    early: bytes
    query: bytes | None


class _Early(NamedTuple):
    value: bytes
    position: ReplicaPosition


class Audit:
    """The early answers that the query has not repeated yet, and the result of the comparisons so far."""

    def __init__(self) -> None:
        self.compared = 0
        self._lock = threading.Lock()
        self._early: OrderedDict[str, _Early] = OrderedDict()
        self._bytes = 0
        self._of_query: OrderedDict[str, bytes] = OrderedDict()
        self._of_query_bytes = 0
        self._batches: deque[tuple[float, ReplicaPosition]] = deque()

    def __len__(self) -> int:
        return len(self._early)

    def __contains__(self, request: str) -> bool:
        return request in self._early

    @property
    def size_bytes(self) -> int:
        """The size of the early answers that wait for the query's."""
        return self._bytes

    def early(self, answers: Mapping[str, bytes], position: ReplicaPosition) -> AnswerDifference | None:
        """Add early answers by the ids of their requests. Return a difference if the query answered first."""
        difference = None
        with self._lock:
            for request, value in answers.items():
                query = self._of_query.pop(request, None) if self._of_query else None
                if query is None:
                    self._early[request] = _Early(value, position)
                    self._bytes += len(value)
                    continue
                self._of_query_bytes -= len(query)
                self.compared += 1
                if query != value:
                    difference = AnswerDifference(request, value, query)
        return difference

    def query(self, answers: Iterable[bytes]) -> AnswerDifference | None:
        """Add answers of the query. Return a difference if there is one."""
        difference = None
        with self._lock:
            for value in answers:
                request = request_of(value)
                if request is None:
                    continue
                early = self._early.pop(request, None)
                if early is None:
                    self._store(request, value)
                    continue
                self._bytes -= len(early.value)
                self.compared += 1
                if early.value != value:
                    difference = AnswerDifference(request, early.value, value)
        return difference

    def _store(self, request: str, value: bytes) -> None:
        self._of_query_bytes += len(value) - len(self._of_query.pop(request, b""))
        self._of_query[request] = value
        while len(self._of_query) > QUERY_ANSWERS_MAX or self._of_query_bytes > QUERY_ANSWERS_MAX_BYTES:
            _, oldest = self._of_query.popitem(last=False)
            self._of_query_bytes -= len(oldest)

    def committed(self, read: ReplicaPosition, now_s: float) -> None:
        """Record that the query has committed a batch up to this position."""
        with self._lock:
            self._batches.append((now_s, read))

    def overdue(self, now_s: float) -> AnswerDifference | None:
        """Return an early answer that the query should have repeated, or None.

        The query's answer is missing only if the early one is still overdue after the whole topic was read.
        """
        read: ReplicaPosition | None = None
        with self._lock:
            while self._batches and self._batches[0][0] + OVERDUE_AFTER_S <= now_s:
                _, read = self._batches.popleft()
            request = next(iter(self._early), None)  # the first one is the oldest
            if read is None or request is None:
                return None
            early, position = self._early[request]
            return AnswerDifference(request, early, None) if position.is_before(read) else None


def request_of(answer: bytes) -> str | None:
    """Return the id of the request that this response answers, or None if it answers none."""
    correlation_id = answer.find(_CORRELATION_ID)
    begin = answer.find(_REQUEST, correlation_id) + len(_REQUEST)
    if correlation_id < 0 or begin < len(_REQUEST):
        return None
    return answer[begin : answer.index(b'"', begin)].decode()
