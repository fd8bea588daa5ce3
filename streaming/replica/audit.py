"""The audit compares each early answer, which the replica gives, with the query's answer to the same request.

No IO and no clock. Safe for threads.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

# The limits of stored answers of the query to requests that the replica has not answered yet.
QUERY_ANSWERS_MAX = 20_000
QUERY_ANSWERS_MAX_BYTES = 32 * 1024 * 1024
# The query's answer is overdue this long after the commit of a batch that has read the request.
OVERDUE_AFTER_S = 5.0

# The beginnings of two fields in an encoded response: JSON escapes quotes within strings, so these bytes are
# not in a value. Every response has both fields, in this order. Messages to connections of RocketMQ's
# clients, which answer nothing, have no correlation id.
_CORRELATION_ID_FIELD = b'"correlation_id":"'
_REQUEST_FIELD = b'"request":"'


class ReplicaPosition(NamedTuple):
    """The position in the log at which early answers were given.

    All records before `offsets` were applied, by partition, and all deadlines up to `as_of_ms` were fired.
    """

    offsets: Mapping[int, int]
    as_of_ms: int

    def is_before(self, other: "ReplicaPosition") -> bool:
        """Return True if no offset or time of this position is after that of the other one. They may be
        equal.
        """
        if self.as_of_ms > other.as_of_ms:
            return False
        return all(offset <= other.offsets.get(number, 0) for number, offset in self.offsets.items())


class AnswerDifference(Struct, frozen=True):
    """An early answer that differs from the query's."""

    request: str  # its id
    early: bytes
    query: bytes | None  # None if the query gave no answer


class _EarlyAnswer(Struct, frozen=True, gc=False):
    value: bytes
    position: ReplicaPosition  # at which the replica gave it


class Audit:
    """The early answers that the query has not repeated yet, by the ids of their requests, and the number of
    comparisons so far.
    """

    def __init__(self) -> None:
        self.compared = 0
        self._lock = threading.Lock()
        self._early_answers: OrderedDict[str, _EarlyAnswer] = OrderedDict()
        self.size_bytes = 0
        """The size of the early answers that wait for the query's."""
        # By the ids of their requests: answers of the query that came before the replica's.
        self._query_answers: OrderedDict[str, bytes] = OrderedDict()
        self._query_answers_bytes = 0
        # Recently committed batches: the time of the commit, and the position up to which the batch has read.
        self._batches: deque[tuple[float, ReplicaPosition]] = deque()

    def __len__(self) -> int:
        return len(self._early_answers)

    def __contains__(self, request: str) -> bool:
        return request in self._early_answers

    def add_early(self, answers: Mapping[str, bytes], position: ReplicaPosition) -> AnswerDifference | None:
        """Add early answers by the ids of their requests. Compare those that the query gave first, and return
        the last difference, or None.
        """
        difference = None
        with self._lock:
            for request, value in answers.items():
                query_answer = self._query_answers.pop(request, None) if self._query_answers else None
                if query_answer is None:
                    self._early_answers[request] = _EarlyAnswer(value, position)
                    self.size_bytes += len(value)
                    continue
                self._query_answers_bytes -= len(query_answer)
                self.compared += 1
                if query_answer != value:
                    difference = AnswerDifference(request, value, query_answer)
        return difference

    def add_query(self, answers: Iterable[bytes]) -> AnswerDifference | None:
        """Compare answers of the query with the early answers, and return the last difference, or None. Store
        those that the replica has not given yet.
        """
        difference = None
        with self._lock:
            for value in answers:
                request = request_of(value)
                if request is None:
                    continue
                early = self._early_answers.pop(request, None)
                if early is None:
                    self._store_query_answer(request, value)
                    continue
                self.size_bytes -= len(early.value)
                self.compared += 1
                if early.value != value:
                    difference = AnswerDifference(request, early.value, value)
        return difference

    def _store_query_answer(self, request: str, value: bytes) -> None:
        """Store an answer that came before the replica's, and drop the oldest ones above the limits."""
        self._query_answers_bytes += len(value) - len(self._query_answers.pop(request, b""))
        self._query_answers[request] = value
        while (
            len(self._query_answers) > QUERY_ANSWERS_MAX
            or self._query_answers_bytes > QUERY_ANSWERS_MAX_BYTES
        ):
            _, oldest = self._query_answers.popitem(last=False)
            self._query_answers_bytes -= len(oldest)

    def committed(self, read: ReplicaPosition, now_s: float) -> None:
        """Record that the query has committed a batch that has read up to the position `read`."""
        with self._lock:
            self._batches.append((now_s, read))

    def overdue(self, now_s: float) -> AnswerDifference | None:
        """Return the oldest early answer if the query's answer to its request is overdue, else None.

        The query's answer may still be unread on the responses topic, so the caller has to read that to its
        end before it reports the answer as missing.
        """
        read: ReplicaPosition | None = None  # the position of the last batch committed OVERDUE_AFTER_S ago
        with self._lock:
            while self._batches and self._batches[0][0] + OVERDUE_AFTER_S <= now_s:
                _, read = self._batches.popleft()
            request = next(iter(self._early_answers), None)  # the first one is the oldest
            if read is None or request is None:
                return None
            early = self._early_answers[request]
            return AnswerDifference(request, early.value, None) if early.position.is_before(read) else None


def request_of(answer: bytes) -> str | None:
    """Return the id of the request that this response answers, or None if it answers none."""
    correlation_id = answer.find(_CORRELATION_ID_FIELD)
    begin = answer.find(_REQUEST_FIELD, correlation_id) + len(_REQUEST_FIELD)
    if correlation_id < 0 or begin < len(_REQUEST_FIELD):
        return None
    return answer[begin : answer.index(b'"', begin)].decode()
