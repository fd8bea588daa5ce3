"""The threads that follow the topics of a coordinator or an observer for the page.

`GroupsFollower` reads views (snapshots of groups) and offsets from their beginning, entries of the last hour,
and the bounds of the logs of topics that have offsets. It updates a Fleet, the page's data of all groups.

`ServiceFollower` reads the topics about the coordinator itself: claims, by which a coordinator owns the
topics; clock records, by which it attests the time; dead letters, about requests that failed; and pending
transactions.
"""

import threading
import time
from collections import deque

import msgspec
import structlog
from kafka import TopicPartition
from msgspec import Struct

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.claims import Claim, Claims
from kafka_why.contract.codec import UNREADABLE, PendingTransaction, is_clock_record
from kafka_why.contract.layout import TopicLayout
from kafka_why.lag.lag_poller import LagPoller
from kafka_why.now import now_ms
from kafka_why.page.fleet import WINDOW_MS, Fleet
from kafka_why.topic_reader import Record, TopicReader, TopicsFollower, reader_and_admin

MAX_DEAD_LETTERS = 1_000
"""Maximum number of dead letters of the last hour that stay in memory: the newest."""
MAX_MESSAGE_CHARS = 400
MAX_KEY_CHARS = 200
MAX_PENDING = 20
"""Maximum number of open transactions that are listed: the oldest."""
CLOCK_POLL_INTERVAL_S = 5.0
"""The pause after a poll for a clock record."""
CLOCK_POLL_S = 5.0
"""The time to wait for a clock record. A coordinator without a replica and members appends one each 2 s."""
_BROKER_TIMEOUT_MS = 5_000
_POLL_MS = 250
_GROUPS_POLL_MS = 200
TRIM_INTERVAL_S = 30.0

log = structlog.get_logger()


class _DeadLetter(Struct, frozen=True):
    """The displayed fields of a dead letter. `reason` may be one that only another version has."""

    reason: str
    message: str
    request: str
    answered: bool = False
    key: bytes = b""  # of the record that the letter is about


class DeadLetterLine(Struct, frozen=True):
    """A dead letter as the page shows it."""

    at_ms: int
    reason: str
    message: str
    request: str  # id of the record
    key: str  # key of the record
    answered: bool  # the request got a response


class PendingTransactionLine(Struct, frozen=True):
    """A group's offsets that have been pending in a transaction since `at_ms`."""

    at_ms: int
    group_id: str
    transactional_id: str
    partitions: int


class ServiceFacts(Struct, frozen=True, kw_only=True):
    """The content of the coordinator's own topics."""

    is_complete: bool  # they have been read to their ends
    claim: Claim | None
    clock_ms: int | None  # append time of the last clock record that was seen
    is_silent: bool | None  # True if the last poll found no clock record; None before the first poll
    dead_letters: list[DeadLetterLine]  # of the last hour, the newest first
    has_more: bool  # some dead letters are omitted
    pending: list[PendingTransactionLine]  # the oldest of `pending_number` transactions
    pending_number: int
    is_observed: bool = False  # an observer's topics, without claims and clock records


class ServiceTopics:
    """The content of the coordinator's own topics, updated from their records. Thread-safe.

    For `is_observed` see ServiceFacts.
    """

    def __init__(self, *, is_observed: bool = False) -> None:
        self._is_observed = is_observed
        self._lock = threading.Lock()
        self._claims = Claims()
        self._dead_letters: deque[DeadLetterLine] = deque()
        self._omitted_until_ms = float("-inf")  # no omitted dead letter is later
        self._pending: dict[bytes, PendingTransactionLine] = {}
        self._is_complete = False
        self._clock_ms: int | None = None
        self._is_silent: bool | None = None

    def restart(self) -> None:
        """Forget everything that a reconnected reader reads again."""
        with self._lock:
            self._dead_letters.clear()
            self._pending.clear()
            self._is_complete = False

    def apply_claim(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        with self._lock:
            self._claims.apply(offset, key, value)

    def apply_dead_letter(self, at_ms: int, value: bytes | None) -> None:
        """Apply a record of the dead-letters topic. Raises one of UNREADABLE."""
        letter = _dead_letter.decode(value or b"")
        line = DeadLetterLine(
            at_ms=at_ms,
            reason=letter.reason[:MAX_KEY_CHARS],
            message=letter.message[:MAX_MESSAGE_CHARS],
            request=letter.request[:MAX_KEY_CHARS],
            key=letter.key[: 4 * MAX_KEY_CHARS].decode(errors="replace")[
                :MAX_KEY_CHARS
            ],  # 4 bytes a character
            answered=letter.answered,
        )
        with self._lock:
            self._dead_letters.append(line)
            if len(self._dead_letters) > MAX_DEAD_LETTERS:
                self._omitted_until_ms = max(self._omitted_until_ms, self._dead_letters.popleft().at_ms)

    def omit_dead_letters(self, until_ms: int) -> None:
        """Record that some dead letters are omitted, none of them after `until_ms`."""
        with self._lock:
            self._omitted_until_ms = max(self._omitted_until_ms, until_ms)

    def apply_pending(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of a pending transaction, or of its end. Raises one of UNREADABLE."""
        pending = None if value is None else _pending.decode(value)
        with self._lock:
            if pending is None:
                self._pending.pop(key or b"", None)
            else:
                self._pending[key or b""] = PendingTransactionLine(
                    pending.at_ms, pending.group_id, pending.transactional_id, pending.partitions
                )

    def apply_clock(self, at_ms: int | None) -> None:
        """Apply the result of a poll for a clock record: its append time, or None if there was none."""
        with self._lock:
            self._is_silent = at_ms is None
            self._clock_ms = self._clock_ms if at_ms is None else at_ms

    def mark_complete(self) -> None:
        """Mark the topics as read to the ends that they had when the reader connected."""
        with self._lock:
            self._is_complete = True

    def facts(self, now_ms: int) -> ServiceFacts:
        """Return a copy of the content as of this time."""
        with self._lock:
            since_ms = now_ms - WINDOW_MS
            while self._dead_letters and self._dead_letters[0].at_ms < since_ms:
                self._dead_letters.popleft()
            oldest = sorted(self._pending.values(), key=lambda one: one.at_ms)[:MAX_PENDING]
            return ServiceFacts(
                is_complete=self._is_complete,
                claim=self._claims.in_force(),
                clock_ms=self._clock_ms,
                is_silent=self._is_silent,
                dead_letters=list(reversed(self._dead_letters)),
                has_more=self._omitted_until_ms >= since_ms,
                pending=oldest,
                pending_number=len(self._pending),
                is_observed=self._is_observed,
            )


_dead_letter = msgspec.json.Decoder(_DeadLetter)
_pending = msgspec.json.Decoder(PendingTransaction)


class ServiceFollower(TopicsFollower):
    """A thread that updates a ServiceTopics until stopped. It survives an outage of the brokers.

    `reader` is the name of its user in warnings.
    """

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, topics: ServiceTopics, reader: str = "page"
    ) -> None:
        self._topics = topics
        super().__init__(
            f"{reader}-service-follower",
            f"reading the coordinator's own topics for the {reader}",
            client_config,
            layout,
        )

    def _connect_and_follow(self) -> None:
        layout = self._layout
        with (
            self._reader(layout.response_record_max_bytes) as reader,
            self._reader(layout.request_record_max_bytes) as clock_reader,
        ):
            # The ends that the topics had at the start, or {} once the reader has reached all of them.
            unreached_ends = self._start(reader)
            polled_at_s = float("-inf")
            while not self._stopped.is_set():
                for record in reader.poll(_POLL_MS):
                    self._apply(record)
                if unreached_ends and reader.has_read(unreached_ends):
                    unreached_ends = {}
                if not unreached_ends:
                    self._topics.mark_complete()
                if not layout.is_observed and time.monotonic() - polled_at_s > CLOCK_POLL_INTERVAL_S:
                    self._poll_clock(clock_reader)
                    polled_at_s = time.monotonic()
                self._worked()

    def _reader(self, max_record_bytes: int) -> TopicReader:
        return TopicReader(
            self._client_config, max_record_bytes=max_record_bytes, timeout_ms=_BROKER_TIMEOUT_MS
        )

    def _start(self, reader: TopicReader) -> dict[TopicPartition, int]:
        """Assign the topics to the reader. Return the offsets that it must reach before they are complete."""
        layout = self._layout
        names = () if layout.is_observed else (layout.owner_topic, layout.transactions_topic)
        tables = reader.partitions_of(*names)
        letters = reader.partitions_of(layout.dead_letters_topic)
        ends = reader.ends([*tables, *letters])
        first_of_hour = reader.offsets_at(letters, now_ms() - WINDOW_MS)  # None if the hour has no record
        start_at = {}
        self._topics.restart()
        for partition in letters:
            first = first_of_hour[partition]
            start_at[partition] = ends[partition] if first is None else first
            if start_at[partition] < ends[partition] - MAX_DEAD_LETTERS:
                start_at[partition] = ends[partition] - MAX_DEAD_LETTERS
                self._topics.omit_dead_letters(until_ms=now_ms())
        reader.start(beginning=tables, at=start_at)
        return ends

    def _apply(self, record: Record) -> None:
        layout = self._layout
        try:
            if record.topic == layout.owner_topic:
                self._topics.apply_claim(record.offset, record.key, record.value)
            elif record.topic == layout.dead_letters_topic:
                self._topics.apply_dead_letter(record.timestamp, record.value)
            else:
                self._topics.apply_pending(record.key, record.value)
        except UNREADABLE as error:
            log.warning("a record cannot be read", topic=record.topic, error=str(error))

    def _poll_clock(self, clock_reader: TopicReader) -> None:
        """Poll one partition for a new clock record. A running coordinator appends them to all partitions."""
        clock_reader.start(end=[TopicPartition(self._layout.requests_topic, 0)])
        give_up_s = time.monotonic() + CLOCK_POLL_S
        while time.monotonic() < give_up_s and not self._stopped.is_set():
            for record in clock_reader.poll(_POLL_MS):
                if is_clock_record(record.key, record.value):
                    self._topics.apply_clock(record.timestamp)
                    return
        if not self._stopped.is_set():
            clock_reader.ends([TopicPartition(self._layout.requests_topic, 0)])  # raises if no broker answers
            self._topics.apply_clock(None)


class GroupsFollower(TopicsFollower):
    """A thread that updates a fleet from the topics. Stopping it takes at most one poll.

    It survives an outage of the brokers, and reads the missed records later. `reader` is the name of its user
    in warnings.
    """

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, fleet: Fleet, reader: str = "page"
    ) -> None:
        self._fleet = fleet
        super().__init__(f"{reader}-follower", f"reading for the {reader}", client_config, layout)
        self._lag_poller = LagPoller(fleet.lags)
        self._trimmed_at_s = float("-inf")

    def _connect_and_follow(self) -> None:
        with reader_and_admin(self._client_config, self._layout) as (reader, admin):
            # The ends that the topics had at the start, or {} once the reader has reached all of them.
            unreached_ends = self._start(reader)
            while not self._stopped.is_set():
                for record in reader.poll(_GROUPS_POLL_MS):
                    self._apply(record)
                if unreached_ends and reader.has_read(unreached_ends):
                    unreached_ends = {}
                    self._fleet.mark_complete()
                if not unreached_ends:
                    self._lag_poller.poll(admin)
                    if time.monotonic() - self._trimmed_at_s >= TRIM_INTERVAL_S:
                        self._fleet.trim(now_ms())
                        self._trimmed_at_s = time.monotonic()
                self._worked()

    def _start(self, reader: TopicReader) -> dict[TopicPartition, int]:
        """Assign the topics to the reader.

        Return the offsets that it must reach before the page is complete.
        """
        layout = self._layout
        tables = reader.partitions_of(layout.groups_topic, layout.offsets_topic)
        events = reader.partitions_of(layout.events_topic)
        ends = reader.ends([*tables, *events])
        first_of_hour = reader.offsets_at(events, now_ms() - WINDOW_MS)  # None if the hour has no record
        start_at = {
            partition: ends[partition] if first is None else first
            for partition, first in first_of_hour.items()
        }
        reader.start(beginning=tables, at=start_at)
        return ends

    def _apply(self, record: Record) -> None:
        try:
            self._fleet.apply(record.topic, record.key, record.value, now_ms())
        except UNREADABLE as error:
            log.warning("a record cannot be read", topic=record.topic, error=str(error))
