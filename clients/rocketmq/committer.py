"""A consumer's committed offsets: fetched when it gets queues, committed while it consumes.

If a consumer dies, the next owner of a queue processes the uncommitted records again (at-least-once).
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future

from clients.coordinator_client import CoordinatorClient
from clients.pending import CoordinatorError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    OffsetFetch,
    TopicPartitions,
)
from kafka_why.contract.kafka.responses import OffsetCommitResponse
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.topic_layout import ClientError

# The versions of Kafka's messages that these requests use. Source: *Request.json of Apache Kafka 4.
COMMIT_VERSION, FETCH_VERSION = 9, 9


class Committer:
    """Commits one consumer's positions, with one request in flight at a time.

    Newer positions gather while a request is in flight. The next request repeats the positions of a failed
    one. `tell` gets a line of text about each failure.
    """

    def __init__(self, client: CoordinatorClient, group_id: str, tell: Callable[[str], None]) -> None:
        self._client = client
        self._group_id = group_id
        self._tell = tell
        self._changed = threading.Condition()
        self._gathered: dict[TopicPartition, int] = {}
        self._under_way: dict[TopicPartition, int] = {}

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offset of each partition; one without a committed offset is left out.

        Raises ClientError if the coordinator does not answer or answers with an error.
        """
        topics = [TopicPartitions(topic, list(numbers)) for topic, numbers in _by_topic(partitions).items()]
        request = OffsetFetch(**self._client.header(self._group_id, FETCH_VERSION), topics=topics)
        answer = self._client.send(request).result()
        if answer.error_code is not ErrorCode.NONE:
            raise CoordinatorError(
                "OffsetFetch", self._group_id, answer.error_code, "the answer has no offsets"
            )
        return {
            TopicPartition(topic.name, p.partition_index): p.committed_offset
            for topic in answer.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit these positions: all records before them are processed. Returns at once; see `flush`."""
        with self._changed:
            self._gathered.update(positions)
            self._send()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all positions are committed or a commit fails. Returns False after `timeout_s`."""
        with self._changed:
            self._send()
            return self._changed.wait_for(lambda: not self._under_way, timeout_s)

    def _send(self) -> None:
        """Send the gathered positions unless a commit is in flight. The caller holds the lock."""
        if self._under_way or not self._gathered:
            return
        positions, self._gathered = self._gathered, {}
        request = OffsetCommit(
            **self._client.header(self._group_id, COMMIT_VERSION),
            topics=_committed(positions),
        )
        self._under_way = positions
        try:
            sent = self._client.send(request)
        except ClientError as error:  # the client was closed
            self._done(str(error))
        else:
            sent.add_done_callback(lambda done: self._done(_problem(done)))

    def _done(self, problem: str | None) -> None:
        """End the commit in flight. `problem` describes its failure; None means success."""
        with self._changed:
            if problem is not None:
                # Under the lock: who has been told can commit again at once.
                self._tell(f"offsets were not committed, records may be processed again: {problem}")
                self._gathered = self._under_way | self._gathered
            self._under_way = {}
            if problem is None:
                self._send()
            self._changed.notify_all()


def _committed(positions: Mapping[TopicPartition, int]) -> list[CommittedTopic]:
    return [
        CommittedTopic(topic, [CommittedPartition(n, positions[TopicPartition(topic, n)]) for n in numbers])
        for topic, numbers in _by_topic(positions).items()
    ]


def _problem(done: Future[OffsetCommitResponse]) -> str | None:
    try:
        answer = done.result()
    except ClientError as error:
        return str(error)
    errors = {answer.error_code} | {p.error_code for topic in answer.topics for p in topic.partitions}
    errors.discard(ErrorCode.NONE)
    return ", ".join(sorted(error.name for error in errors)) or None


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics
