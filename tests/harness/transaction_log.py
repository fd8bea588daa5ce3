"""Random logs of offsets in transactions, and the truth about them, which the logs do not contain.

This module simulates the brokers' side: producers with epochs and their transactions, the markers topic,
requests that are repeated or late, and a follower that lags, forgets and repeats. Each transaction has a
number. The truth has the transaction of each request and marker, and the outcome of each transaction.
"""

from dataclasses import dataclass, field
from random import Random

from kafka_why.contract.kafka.requests import (
    AnyRequest,
    CommittedPartition,
    CommittedTopic,
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicMetadata,
    TopicPartitions,
    TransactionMarker,
    TxnOffsetCommit,
)
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row, Timeline
from tests.harness.common import Common
from tests.harness.random_log import GROUPS

GROUP_ID = GROUPS[0]
TOPICS = ("t", "u")
PRODUCERS = 3
PAUSES_MS = (0, 1, 100, 2_000, 30_000)
LONG_PAUSE_MS = 16 * 60_000
COMMON: Common = {
    "group_id": GROUP_ID,
    "correlation_id": "c",
    "reply_partition": 0,
    "api_version": 5,
    "client_id": "c",
}


@dataclass(frozen=True)
class Marker:
    """A marker in the markers topic. `transaction` is None for a copy of an earlier marker."""

    position: int
    producer_id: int
    epoch: int
    committed: bool
    transaction: int | None


@dataclass
class Truth:
    """The facts that the log does not contain. `transaction_of` has the transaction of each TxnOffsetCommit
    and TransactionMarker by request id, or None for the copy of a marker.
    """

    transaction_of: dict[str, int | None] = field(default_factory=dict)
    producer_of: dict[int, int] = field(default_factory=dict)
    is_committed: dict[int, bool] = field(default_factory=dict)


@dataclass
class Producer:
    """A producer as the transaction coordinator knows it. `transaction` is the open one, or None."""

    producer_id: int
    txn_version: int
    epoch: int = 0
    transaction: int | None = None


class Brokers:
    """Writes a random log. The core handles it at once, because the follower reads the pending offsets."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        self.rows: list[Row] = []
        self.truth = Truth()
        self._random = Random(seed)
        self._timeline = Timeline(GROUP_ID, None, config)
        self._at_ms = 1_000_000
        self._offset = -1
        self._markers: list[Marker] = []
        self._end = self._random.randrange(100)  # of the markers topic
        self._producers = [Producer(n + 1, self._random.choice((1, 2))) for n in range(PRODUCERS)]
        self._late_requests: list[tuple[TxnOffsetCommit, int]] = []
        self._known_pending: list[TxnOffsetCommit] = []  # what the follower knows to be pending
        self._values = 0
        self._eagerness = self._random.choice((0.1, 0.3, 0.6))

    def play(self, length: int) -> None:
        """Write a log, and bring it to its end: no transaction is open, no request under way."""
        for _ in range(length):
            self._at_ms += self._random.choice(PAUSES_MS)
            self._act()
            if self._random.random() < self._eagerness:
                self._follow()
        for producer in self._producers:
            if producer.transaction is not None:
                self._end_transaction(producer)
        while self._late_requests:
            self._append_late_request()
        for _ in range(2):
            self._read_pending()
            self._follow()

    def _act(self) -> None:
        random, producer = self._random, self._random.choice(self._producers)
        kind = random.random()
        if kind < 0.35:
            self._send_offsets(producer)
        elif kind < 0.55:
            if producer.transaction is not None:
                self._end_transaction(producer)
        elif kind < 0.65:
            if self._late_requests:
                self._append_late_request()
        elif kind < 0.72:
            self._read_pending()
        elif kind < 0.75:
            self._copy_marker(producer)
        elif kind < 0.76:
            self._at_ms += LONG_PAUSE_MS
        else:
            self._append(self._other_request(kind))

    def _other_request(self, kind: float) -> AnyRequest:
        random = self._random
        topic = random.choice(TOPICS)
        topics = [TopicPartitions(topic, [0, 1])] if random.random() < 0.7 else None
        if kind < 0.87:
            return OffsetFetch(**COMMON, topics=topics, require_stable=random.random() < 0.6)
        if kind < 0.95:
            return OffsetCommit(**COMMON, topics=self._topics())
        if kind < 0.97:
            return OffsetDelete(**COMMON, topics=[TopicPartitions(topic, [random.randrange(2)])])
        if kind < 0.99:
            return TopicMetadata(group_id=GROUP_ID, topics={topic: None})
        return DeleteGroup(**COMMON)

    def _send_offsets(self, producer: Producer) -> None:
        """Append the request at once, late, or both. A gateway reads the position again for a retry."""
        if producer.transaction is None:
            producer.transaction = len(self.truth.producer_of)
            self.truth.producer_of[producer.transaction] = producer.producer_id
        for _ in range(self._random.choice((1, 1, 1, 2))):
            request = TxnOffsetCommit(
                **COMMON,
                transactional_id=f"t{producer.producer_id}",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                txn_version=producer.txn_version,  # type: ignore[arg-type]
                txn_partition=0,
                txn_position=self._end,
                topics=self._topics(),
            )
            if self._random.random() < 0.3:
                self._late_requests.append((request, producer.transaction))
            else:
                self._append(request, producer.transaction)

    def _topics(self) -> list[CommittedTopic]:
        """Return some partitions, each with an offset that no other request has."""
        chosen = [(t, p) for t in TOPICS for p in (0, 1) if self._random.random() < 0.4] or [("t", 0)]
        topics = []
        for topic, partition in chosen:
            self._values += 1
            topics.append(CommittedTopic(topic, [CommittedPartition(partition, self._values)]))
        return topics

    def _end_transaction(self, producer: Producer) -> None:
        """End a transaction, either by the client, or by the coordinator that fences the producer."""
        assert producer.transaction is not None
        is_fenced = self._random.random() < 0.2
        committed = not is_fenced and self._random.random() < 0.6
        epoch = producer.epoch + (1 if is_fenced or producer.txn_version > 1 else 0)
        self._write_marker(Marker(self._end, producer.producer_id, epoch, committed, producer.transaction))
        self.truth.is_committed[producer.transaction] = committed
        producer.transaction = None
        producer.epoch = epoch + (1 if is_fenced else 0)

    def _copy_marker(self, producer: Producer) -> None:
        """Write the producer's last marker again. Version 1 cannot detect a copy, and neither can Kafka."""
        markers = [marker for marker in self._markers if marker.producer_id == producer.producer_id]
        if markers and producer.txn_version > 1:
            last = markers[-1]
            self._write_marker(Marker(self._end, last.producer_id, last.epoch, last.committed, None))

    def _write_marker(self, marker: Marker) -> None:
        self._markers.append(marker)
        self._end += self._random.choice((1, 1, 3))

    def _append_late_request(self) -> None:
        request, transaction = self._late_requests.pop(self._random.randrange(len(self._late_requests)))
        self._append(request, transaction)

    def _read_pending(self) -> None:
        """Let the follower read the pending offsets. Those that it read before may have ended meanwhile."""
        group = self._timeline.group
        if self._random.random() < 0.2:
            self._known_pending = []
        if isinstance(group, ClassicGroup):
            by_id = {row.request_id: row.request for row in self.rows}
            for entry in group.pending:
                request = by_id[entry.request]
                assert isinstance(request, TxnOffsetCommit)
                self._known_pending.append(request)

    def _follow(self) -> None:
        """Let the follower send, for each pending request that it knows, the first marker that decides it.

        Copies of markers before it are sent, too. The order is random, because two followers may send at
        once.
        """
        sent: set[tuple[int, int]] = set()
        self._random.shuffle(self._known_pending)
        for request in self._known_pending:
            for marker in self._markers:
                if marker.producer_id != request.producer_id or marker.position < request.txn_position:
                    continue
                if (request.txn_position, marker.position) not in sent:
                    sent.add((request.txn_position, marker.position))
                    self._append(self._marker_request(marker, request.txn_position), marker.transaction)
                if marker.transaction is not None:
                    break
        if self._random.random() < 0.5:
            self._known_pending = []

    def _marker_request(self, marker: Marker, first_position: int) -> TransactionMarker:
        return TransactionMarker(
            **COMMON,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            txn_partition=0,
            txn_position=marker.position,
            first_position=first_position,
            committed=marker.committed,
        )

    def _append(self, request: AnyRequest, transaction: int | None = None) -> None:
        """Append a request, sometimes into the pack of the request before it."""
        last = self.rows[-1] if self.rows else None
        if last is not None and last.at_ms == self._at_ms and "#" in last.request_id:
            record, n = last.request_id.split("#")
            request_id = f"{record}#{int(n) + 1}"
        else:
            self._offset += 1
            request_id = f"requests-0-{self._offset}" + ("#0" if self._random.random() < 0.4 else "")
        if isinstance(request, TxnOffsetCommit | TransactionMarker):
            self.truth.transaction_of[request_id] = transaction
        row = Row(self._at_ms, request_id, request)
        self.rows.append(row)
        self._timeline.apply(row)


def play(seed: int, length: int, config: CoordinatorConfig) -> tuple[list[Row], Truth]:
    """Return a random log of one group, and its truth."""
    brokers = Brokers(seed, config)
    brokers.play(length)
    return brokers.rows, brokers.truth
