"""The ticker, which attests the time by clock records in the requests topic itself.

Each round appends a record to every partition and waits until all are acknowledged. Every request with a
timestamp before the earliest of their append times is then in the log, before the next round's records. So
the next round's records attest that time: they say that no later request has an earlier timestamp. Time is
therefore in the log, and no request is late. Without a ticker, time stands still, and no session expires. Two
tickers do no harm.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from kafka.errors import KafkaError
from msgspec import Struct

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, clock_record
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import BackgroundThread, Closeable
from kafka_why.topic_reader import TopicReader, TopicsFollower
from streaming.service.clock.pace import MembersPace, Pace
from streaming.service.request_appender import BROKER_TIMEOUT_MS

DEFAULT_INTERVAL_MS = 100
MAX_SKEW_MS = 5_000
NOTHING_ATTESTED_MS = 0
# The producer gives up a clock record that is not acknowledged within this time, because the next one attests
# a later time.
DELIVERY_TIMEOUT_MS = 5_000
RECONNECT_MAX_MS = 1_000

log = structlog.get_logger()


class Ticker(BackgroundThread):
    """A thread that appends clock records until stopped.

    `pace` decides the pauses between rounds. If it is None, a `MembersPace` with `interval_ms` does. The
    records have `owner_epoch` (`streaming.service.ownership.owner`). `clock_lag_ms` is the maximum difference
    between brokers' clocks (0 with one broker). If the broker's clock and `wall_ms` differ by more than
    MAX_SKEW_MS, the ticker attests no later time and sets `alarm`, because a stepped clock must not expire
    all members.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        topic: str,
        partitions: int,
        *,
        owner_epoch: int | None = None,
        interval_ms: int = DEFAULT_INTERVAL_MS,
        clock_lag_ms: int = 0,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
        pace: Pace | None = None,
    ) -> None:
        self._client_config = client_config
        self._topic = topic
        self._partitions = partitions
        self._owner_epoch = owner_epoch
        self._interval_s = interval_ms / 1000
        self._clock_lag_ms = clock_lag_ms
        self._wall_ms = wall_ms
        self.pace = pace or MembersPace(partitions, interval_ms)
        super().__init__("ticker")
        self._last_success_s = time.monotonic()  # when `attested_ms` was last set
        self._failing_since_s: float | None = None  # None if the last attempt succeeded
        self.attested_ms = NOTHING_ATTESTED_MS
        """The time of the broker's clock, in ms, that the next round attests."""
        self.alarm: str | None = None

    def stop(self) -> None:
        self._stopped.set()
        self.pace.wake()
        super().stop()

    def age_s(self) -> float:
        """Return the seconds since the last successful round, or since the ticker was created."""
        return time.monotonic() - self._last_success_s

    def cut_off_s(self) -> float:
        """Return the seconds since brokers stopped acknowledging records, 0 if the last attempt succeeded."""
        since_s = self._failing_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def _run(self) -> None:
        """Connect and append clock records until stopped, also after errors."""
        while not self._stopped.is_set():
            try:
                appender = _Appender(self._client_config, self._topic, self._partitions, self._owner_epoch)
            except KafkaError as error:
                self._failed(f"no broker answers: {error}")
                self._stopped.wait(self._interval_s)
                continue
            with appender:
                self._tick(appender)

    def _tick(self, appender: "_Appender") -> None:
        """Append rounds of clock records until stopped."""
        while not self._stopped.is_set():
            try:
                self._append(appender, self.pace.records())
                # The next round attests the broker's time that this one shows.
                if self.pace.needs_second_round(self.attested_ms):
                    self._append(appender)
            except KafkaError as error:
                self._failed(f"the broker acknowledges no clock record: {error}")
                self._stopped.wait(self._interval_s)
                continue
            self.pace.wait(self.attested_ms)

    def _append(self, appender: "_Appender", records: int = 1) -> None:
        """Append a round of this many records to each partition, which attest `attested_ms`."""
        times_and_offsets = appender.append(self.attested_ms, records)
        self.pace.appended([offset for _, offset in times_and_offsets])
        self._update_attested([at_ms for at_ms, _ in times_and_offsets])

    def _update_attested(self, append_times_ms: list[int]) -> None:
        """Set the time that the next round attests to the earliest of these append times of the last round,
        unless the broker's clock is wrong.
        """
        self._failing_since_s = None
        wall_ms = self._wall_ms()
        skew_ms = max((abs(at_ms - wall_ms) for at_ms in append_times_ms), default=0.0)
        if skew_ms > MAX_SKEW_MS:
            self._raise_alarm(
                f"the broker's clock and this machine's are {skew_ms:.0f} ms apart, {MAX_SKEW_MS} are allowed"
            )
            return
        # Minus 1 ms, because a request of the same millisecond may follow the clock record.
        self.attested_ms = max(self.attested_ms, min(append_times_ms) - 1 - self._clock_lag_ms)
        self._last_success_s = time.monotonic()
        if self.alarm is not None:
            log.info("time goes on", attested_ms=self.attested_ms)
            self.alarm = None

    def _failed(self, reason: str) -> None:
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()
        self._raise_alarm(reason)

    def _raise_alarm(self, reason: str) -> None:
        if self.alarm is None:
            log.error("time stands still", reason=reason)
        self.alarm = f"time stands still, no deadline passes: {reason}"


def brokers_time_ms(client_config: ClientConfig, topic: str, partitions: int) -> int:
    """Return the broker's current time in ms. No request that is on the topic now has a later append time.

    The time is that of clock records that this call appends, and that attest nothing. Raises KafkaError.
    """
    with _Appender(client_config, topic, partitions) as appender:
        return max(at_ms for at_ms, _ in appender.append(NOTHING_ATTESTED_MS))


def fence(client_config: ClientConfig, topic: str, partitions: int, owner_epoch: int) -> None:
    """Append a clock record of this epoch to every partition, and wait until all are acknowledged.

    A batch of an earlier owner that reads beyond them fails. Raises KafkaError.
    """
    with _Appender(client_config, topic, partitions, owner_epoch) as appender:
        appender.append(NOTHING_ATTESTED_MS)


class _Appender(Closeable):
    """A producer that writes one clock record to each partition and waits for all. Raises KafkaError.

    After a failure it reconnects by itself, and gives up unwritten records after their timeout.
    """

    def __init__(
        self, client_config: ClientConfig, topic: str, partitions: int, owner_epoch: int | None = None
    ) -> None:
        self._topic = topic
        self._partitions = range(partitions)
        self._owner_epoch = owner_epoch
        self._producer = kafka_clients.best_effort_producer(
            client_config, timeout_ms=DELIVERY_TIMEOUT_MS, reconnect_backoff_max_ms=RECONNECT_MAX_MS
        )

    def append(self, time_ms: int, records: int = 1) -> list[tuple[int, int]]:
        """Append this many clock records that attest `time_ms` to every partition.

        Return the append time in ms and the offset of each partition's last one, in the order of the
        partitions.
        """
        value = clock_record(time_ms, self._owner_epoch)
        for _ in range(records - 1):
            self._send(value)  # the acknowledgement of the last record covers these, too
        futures = self._send(value)
        acknowledged = [future.get(timeout=2 * DELIVERY_TIMEOUT_MS / 1000) for future in futures]
        return [(metadata.timestamp, metadata.offset) for metadata in acknowledged]

    def _send(self, value: bytes) -> list[Any]:
        """Send a record to each partition, and return kafka-python's futures."""
        return [self._producer.send(self._topic, value=value, partition=p) for p in self._partitions]

    def close(self) -> None:
        self._producer.close(timeout=2 * DELIVERY_TIMEOUT_MS / 1000)


# The pause between two checks by the members watcher.
POLL_S = 1.0


class _View(Struct):
    """The fields of a group's view that show if a client may wait for a deadline: of Kafka's groups, and of
    RocketMQ's (`consumers`, `producers`).
    """

    members: list[msgspec.Raw] = []
    pending_members: list[msgspec.Raw] = []
    consumers: list[msgspec.Raw] = []
    producers: list[msgspec.Raw] = []
    truncated: bool = False


_decode = msgspec.json.Decoder(_View).decode


class GroupsWithMembers:
    """The groups with members, pending members or clients, by their last records on the groups topic."""

    def __init__(self) -> None:
        self._groups: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply the next record of the groups topic. A view that cannot be decoded counts as one with
        members.
        """
        if value is None or not _has_members(value):
            self._groups.discard(key)
        else:
            self._groups.add(key)


def _has_members(value: bytes) -> bool:
    """Return True if the view shows a client that may wait for a deadline, or cannot be read completely."""
    try:
        view = _decode(value)
    except UNREADABLE:
        return True
    return view.truncated or bool(view.members or view.pending_members or view.consumers or view.producers)


class MembersWatcher(TopicsFollower):
    """A thread that reads the groups topic after a while without requests, and reports to `pace` when no
    group has members. While no broker answers, it reports nothing.
    """

    _retried_errors = Exception  # without this thread, clock records stay frequent

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, pace: MembersPace) -> None:
        self._pace = pace
        super().__init__("members-watcher", "looking for groups with members", client_config, layout)

    def _connect_and_follow(self) -> None:
        """Read the groups topic whenever `pace` needs it, until stopped. Raises KafkaError."""
        if not self._wait_for_quiet():
            return
        with TopicReader(
            self._client_config,
            max_record_bytes=self._layout.response_record_max_bytes,
            timeout_ms=BROKER_TIMEOUT_MS,
        ) as reader:
            groups = GroupsWithMembers()
            partitions = reader.partitions_of(self._layout.groups_topic)
            reader.start(beginning=partitions)
            while self._wait_for_quiet():
                queried_at_s = time.monotonic()
                ends = reader.ends(partitions)
                while not reader.has_read(ends):
                    if self._stopped.is_set():
                        return
                    for record in reader.poll():
                        groups.apply(record.key, record.value)
                self._worked()
                if not groups:
                    self._pace.no_member(queried_at_s)
                self._stopped.wait(POLL_S)

    def _wait_for_quiet(self) -> bool:
        """Wait until `pace` needs to know if groups have members. Return False if stopped."""
        while not self._stopped.is_set():
            if self._pace.needs_members_check():
                return True
            self._stopped.wait(POLL_S)
        return False
