"""Outages: times without a coordinator, from the last action of one until clients can reach a gateway again.

All sessions restart at the end of an outage, so it must not end before clients can reach a gateway. A
gateway of this process listens before the query starts. If gateways are separate processes, the first
request shows that clients are back.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

import msgspec
from kafka import TopicPartition

from checkpoints.metadata import KnownOutage
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, is_clock_record
from kafka_why.contract.early_answers import EarlyAnswers, ReplicaId, as_of, marker_headers
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import Record, TopicReader
from streaming.service.clock.ticker import brokers_time_ms
from streaming.service.request_appender import ServiceRequest, append_records
from streaming.service.topics import LogAndState

# The key of a marker, which has no value. kafka-python cannot send a record without key and value.
MARKER_KEY = b"marker"
# A margin for the differences of brokers' clocks, which stamp the records.
_CLOCKS_MARGIN_MS = 60_000
_TIMEOUT_S = 30.0


def invalidate_early_answers(
    client_config: ClientConfig, layout: TopicLayout, first: ReplicaId, since_ms: int
) -> int:
    """Invalidate further early answers of the replicas whose ids are lower than `first`, and return their
    horizon in ms. Raises KafkaError.

    Early answers are those that a replica gives before the query. A marker is a record without an answer. Its
    headers name `first`, and readers drop all answers of lower replicas after it. This call appends a marker
    to each partition of the responses topic.

    The horizon is the latest time up to which these replicas have acted, as the answers before the markers
    report, or 0 if there are no answers. Clients may have these answers, so no outage begins before the
    horizon, and requests up to it are handled at their own times. `since_ms` is the last append time that a
    planned batch has read. Answers before that time are not read, because the query has repeated them.
    """
    marker_offsets = _append_markers(client_config, layout, first)
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        offsets = reader.offsets_at(marker_offsets, since_ms - _CLOCKS_MARGIN_MS)
        begin = {p: offset for p, offset in offsets.items() if offset is not None}
        reader.start(at=begin)
        valid_answers = EarlyAnswers()
        horizon_ms = 0
        ends = {p: marker_offsets[p] for p in begin}
        for record in reader.read_to(ends, timeout_ms=round(_TIMEOUT_S * 1000)):
            if valid_answers.accepts(record.partition, record.headers) and (early := as_of(record.headers)):
                horizon_ms = max(horizon_ms, early.as_of_ms)
    return horizon_ms


def _append_markers(
    client_config: ClientConfig, layout: TopicLayout, first: ReplicaId
) -> Mapping[TopicPartition, int]:
    """Append a marker to each partition of the responses topic, and return the markers' offsets."""
    headers = marker_headers(first)
    markers = [
        {"key": MARKER_KEY, "headers": headers, "partition": partition}
        for partition in range(layout.reply_partitions)
    ]
    appended = append_records(client_config, layout.responses_topic, markers)
    return {TopicPartition(record.topic, record.partition): record.offset for record in appended}


# Kafka's clients wait up to 1 s (Java), 10 s (librdkafka) or 30 s (kafka-python) between two attempts to
# connect, so a longer silence means that no clients run.
FIRST_REQUEST_WAIT_S = 30.0
# A request counts as sent in the outage if it follows the last clock record by at least this long.
SILENCE_MS = 1_000
_POLL_MS = 100
_READ_TIMEOUT_MS = 30_000


class ActedUntil(NamedTuple):
    """The latest times in ms up to which coordinators have acted, 0 on a new checkpoint.

    A suspended driver of an earlier owner may resume and plan one more batch after `batch`, which may read
    beyond these times. So the outage applies from that batch on.
    """

    batch: int  # the last planned batch, -1 if there is none
    read_ms: int  # the last append time that a planned batch has read
    horizon_ms: int  # the horizon of the coordinators' replicas (`invalidate_early_answers`)

    @property
    def until_ms(self) -> int:
        return max(self.read_ms, self.horizon_ms)


def end_replicas_before(ours: LogAndState, first: ReplicaId) -> ActedUntil:
    """Invalidate further answers of the replicas whose ids are lower than `first`, and return the times up to
    which coordinators have acted. Raises KafkaError.
    """
    client_config, layout, checkpoint = ours.client_config, ours.layout, ours.checkpoint
    batch = checkpoint.last_batch("offsets")
    ends = checkpoint.planned_ends(batch, layout.requests_topic)
    read_ms = last_append_ms(client_config, layout.requests_topic, ends) if ends else 0
    return ActedUntil(batch, read_ms, invalidate_early_answers(client_config, layout, first, read_ms))


def end_outage(ours: LogAndState, acted: ActedUntil) -> list[KnownOutage]:
    """Store the outage that began after the times of `acted` and ends now, and return all outages. A new
    checkpoint has none. Raises KafkaError.
    """
    checkpoint, topic = ours.checkpoint, ours.layout.requests_topic
    if not acted.until_ms and acted.batch < 0:
        return []
    until_ms = brokers_time_ms(ours.client_config, topic, ours.layout.request_partitions)
    return checkpoint.store_outage(acted.until_ms, until_ms, acted.batch + 1)


class FirstRequest:
    """A watch for the first request that shows that clients reach a gateway again. Raises KafkaError.

    Such a request is appended after this object was created, or during the outage: more than `silence_ms`
    after the last append of a running coordinator. Other requests, which the last coordinator left unread, do
    not count. `planned_ends` are the offsets up to which planned batches have read, by partition.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        planned_ends: Mapping[int, int],
        silence_ms: int,
    ) -> None:
        last_ms = last_append_ms(client_config, layout.requests_topic, planned_ends)
        self._silence_ms = silence_ms
        self._reader = TopicReader(client_config, max_record_bytes=layout.request_record_max_bytes)
        partitions = [TopicPartition(layout.requests_topic, p) for p in range(layout.request_partitions)]
        self._first_ends = self._reader.ends(partitions)  # when this object was created
        # By partition: the time at which the last coordinator was last known to run.
        self._coordinator_ran_ms = dict.fromkeys(partitions, last_ms)
        self._reader.start(at={p: planned_ends.get(p.partition, 0) for p in partitions})

    def wait(self, timeout_s: float, given_up: Callable[[], bool]) -> bool:
        """Wait for the request. Return False if it does not come in time, or once `given_up` returns True."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            # A list, because `_is_from_client` has to see all records: it notes the clock records.
            are_from_clients = [self._is_from_client(record) for record in self._reader.poll(_POLL_MS)]
            if any(are_from_clients):
                return True
            if time.monotonic() > give_up_s or given_up():
                return False

    def _is_from_client(self, record: Record) -> bool:
        """Return True if this record is such a request. Note the time of a clock record."""
        partition = TopicPartition(record.topic, record.partition)
        if is_clock_record(record.key, record.value):
            if record.offset < self._first_ends[partition]:  # later clock records are this coordinator's
                self._coordinator_ran_ms[partition] = record.timestamp
            return False
        if type_of(record.value) in SERVICE_REQUEST_TYPES:
            return False
        offset, appended_ms = int(record.offset), int(record.timestamp)
        was_in_outage = appended_ms > self._coordinator_ran_ms[partition] + self._silence_ms
        return offset >= self._first_ends[partition] or was_in_outage

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


class _RequestType(msgspec.Struct):
    type: str = ""


SERVICE_REQUEST_TYPES = frozenset(kind.__name__ for kind in get_args(ServiceRequest))
"""Types of requests that show no client: the coordinator's own process sends them, or an operator (`groups
abort-pending`)."""


def type_of(value: bytes | None) -> str:
    """Return the type of a request, "" if the record is not a single request."""
    try:
        return msgspec.json.decode(value or b"", type=_RequestType).type
    except UNREADABLE:
        return ""


def watch_for_first_request(ours: LogAndState, tick_interval_ms: int) -> FirstRequest | None:
    """Watch for the first request after the current outage. Returns None on a new checkpoint, which has no
    outage.

    Raises KafkaError.
    """
    checkpoint, layout = ours.checkpoint, ours.layout
    ends = checkpoint.planned_ends(checkpoint.last_batch("offsets"), layout.requests_topic)
    return FirstRequest(ours.client_config, layout, ends, SILENCE_MS + tick_interval_ms) if ends else None


def last_append_ms(client_config: ClientConfig, topic: str, ends: Mapping[int, int]) -> int:
    """Return the latest append time in ms among the last record before each of `ends`, or 0 if retention has
    deleted all of these records.
    """
    last = {TopicPartition(topic, partition): end - 1 for partition, end in ends.items() if end > 0}
    with TopicReader(client_config) as reader:
        beginnings = reader.beginnings(last)
        last = {partition: offset for partition, offset in last.items() if beginnings[partition] <= offset}
        reader.start(at=last)
        after_last = {partition: offset + 1 for partition, offset in last.items()}
        return max(
            (record.timestamp for record in reader.read_to(after_last, timeout_ms=_READ_TIMEOUT_MS)),
            default=0,
        )
