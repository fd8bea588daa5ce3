"""A member of a share group on its connection: the records that it holds (it has acquired them, and their
locks have not ended), and their outcomes, without IO.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.deliveries.group import CapacityCounter, DeliveryCounts, HeldRanges, OffsetRange, PartitionKey
from gateway.wire.fetch_messages import ShareResponseHandler, share_response_reader
from gateway.wire.framing import RequestHeader
from kafka_why.contract.telemetry import Counted

# The acknowledgements of a request.


TYPES_MAX = 10_000
"""The maximum number of acknowledge types counted in one request, so that it takes at most some milliseconds.
A leader locks at most 10,000 records of a partition (`group.share.partition.max.record.locks`).
"""


class AcknowledgeType(IntEnum):
    """The types of org.apache.kafka.clients.consumer.AcknowledgeType. GAP means that the log has no record at
    an offset.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcknowledgementBatch(NamedTuple):
    """The acknowledgement of the offsets `first` to `last` of a partition."""

    first: int
    last: int
    types: bytes  # one type for all offsets, or a type for each offset

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first offset, the last offset and the type of each run of offsets with the same type."""
        if len(self.types) == 1:
            yield self.first, self.last, self.types[0]
            return
        run_first = self.first
        for kind, run in groupby(self.types):
            next_first = run_first + sum(1 for _ in run)
            yield run_first, next_first - 1, kind
            run_first = next_first


def batches_of(request: Any) -> tuple[dict[PartitionKey, list[AcknowledgementBatch]], bool]:
    """Return the acknowledgements of a decoded request by partition, and True if the request has more than
    TYPES_MAX, of which the rest is left out.

    Batches that every broker refuses are left out (KafkaApis.validateAcknowledgementBatches).
    """
    batches: dict[PartitionKey, list[AcknowledgementBatch]] = {}
    types_left = TYPES_MAX
    for topic in request.topics or ():
        topic_id = topic.topic_id.bytes
        for partition in topic.partitions:
            for batch in partition.acknowledgement_batches or ():
                types_left -= len(batch.acknowledge_types)
                if types_left < 0:
                    return batches, True
                valid_batch = _valid_batch(batch)
                if valid_batch is not None:
                    batches.setdefault((topic_id, partition.partition_index), []).append(valid_batch)
    return batches, False


def _valid_batch(batch: Any) -> AcknowledgementBatch | None:
    """Return a batch of acknowledgements, or None if every broker refuses it."""
    first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
    if last < first or not types or len(types) not in (1, last - first + 1):
        return None
    if min(types) < AcknowledgeType.GAP or max(types) > AcknowledgeType.RENEW:
        return None
    return AcknowledgementBatch(first, last, bytes(types))


HELD_MAX = 10_000
"""The maximum number of ranges that are followed for one member."""
EXPIRED_MAX = 1_000
"""The maximum number of one member's ranges whose locks have ended but which may still be acknowledged."""
GRACE_MS = 1_000
"""A lock has certainly ended this long after its end by the gateway's clock, because the broker started the
lock earlier.
"""
DEFAULT_LOCK_MS = 30_000
"""Kafka's default of group.share.record.lock.duration.ms, until a broker reports it."""
_FINAL_EPOCH = -1  # ShareRequestMetadata
_INVALID_RECORD_STATE = 121  # org.apache.kafka.common.protocol.Errors
_COUNT_NAMES: Mapping[int, str] = MappingProxyType(
    {
        AcknowledgeType.GAP: "gaps",
        AcknowledgeType.ACCEPT: "accepted",
        AcknowledgeType.RELEASE: "released",
        AcknowledgeType.REJECT: "rejected",
        AcknowledgeType.RENEW: "renewed",
    }
)


@dataclass(slots=True)
class DeliveryTotals:
    """The counts of all members since the start."""

    counted: Counted = field(default_factory=Counted)
    refused: int = 0  # acknowledgements that a leader refused with INVALID_RECORD_STATE
    suspected: int = 0  # records that may be poison (`Suspect`)


class SharedState(NamedTuple):
    """The totals, limits and clock that all members share."""

    totals: DeliveryTotals
    held: CapacityCounter  # of the ranges that members hold
    expired: CapacityCounter  # of the ranges whose locks have ended
    clock_ms: Callable[[], int]


class MemberDeliveries:
    """The deliveries to a member and its acknowledgements, until its connection ends.

    `join` returns the member's group, or None if there is no capacity for the group. The member joins when a
    leader has answered without an error, because until then the client may use the ids of another member.
    """

    def __init__(
        self, member_id: str, join: Callable[[], DeliveryCounts | None], shared: SharedState
    ) -> None:
        self.has_ended = False
        self._join = join
        self.joined: DeliveryCounts | None = None
        """The member's group, or None if it has not joined (`begin`)."""
        self._member_id = member_id
        self._shared = shared
        self._held = HeldRanges(shared.held, HELD_MAX)
        self._expired = HeldRanges(shared.expired, EXPIRED_MAX)
        self._unanswered: dict[_ResponseCounter, int] = {}
        """The time at which each unanswered request was sent."""

    @property
    def group(self) -> DeliveryCounts:
        """The group of a member that has joined. A member that holds ranges has joined."""
        assert self.joined is not None, "a member without a group has nothing"
        return self.joined

    def begin(self) -> bool:
        """Join the group, because a leader has answered without an error. Return True if the member is
        counted.
        """
        if self.joined is None and not self.has_ended:
            self.joined = self._join()
        return self.joined is not None and not self.has_ended

    def watch(self, header: RequestHeader, request: Any) -> Callable[[bytes], object]:
        """Follow a decoded request to the broker.

        The returned function receives the response's parts. It counts the records in the response, and the
        request's acknowledgements.
        """
        counter = _ResponseCounter(self, request, self._shared.clock_ms)
        self._unanswered[counter] = counter.sent_ms
        return share_response_reader(header, counter).feed

    def finish_response(self, counter: "_ResponseCounter") -> None:
        """Record that a response has been read completely."""
        self._unanswered.pop(counter, None)

    def expire(self) -> None:
        """Count the locks that ended before the oldest unanswered request was sent.

        Ranges whose locks ended later may have been acknowledged by that request.
        """
        oldest_sent_ms = min(self._unanswered.values(), default=self._shared.clock_ms())
        for partition, span in self._held.take_expired(oldest_sent_ms - GRACE_MS):
            self._count(partition, "expired", span.offsets)
            self._record_end("ended", partition, span)
            self._expired.add(partition, span)

    def end(self) -> None:
        """End the member, because its connection has ended. The broker then releases the member's records."""
        self.release()
        self.has_ended = True
        self._unanswered.clear()
        self._expired.take_all()

    def release(self) -> None:
        """Count the ranges that the broker releases because the member's session has ended."""
        for partition, span in self._held.take_all():
            self._count(partition, "ended", span.offsets)
            self._record_end("ended", partition, span)

    def unfollow(self) -> None:
        """Drop all held ranges of the member, because their outcome is unknown."""
        for partition, span in self._held.take_all():
            self._count(partition, "unfollowed", span.offsets)

    def count_acquired(self, partition: PartitionKey, span: OffsetRange) -> None:
        """Count a range that the member acquired."""
        self._count(partition, "delivered", span.offsets)
        if span.delivery_count > 1:
            self._count(partition, "redelivered", span.offsets)
            self.group.suspects.record_acquired(partition, span)
        if span.delivery_count >= self.group.limit:
            self._count(partition, "last", span.offsets)
        elif span.delivery_count == self.group.limit - 1:
            self._count(partition, "before_last", span.offsets)
        # An acknowledgement of these offsets is from now on one of this delivery.
        self._expired.take(partition, span.first, span.last)
        for earlier in self._held.take(partition, span.first, span.last):
            # The broker delivered them again, so their lock had ended, by its clock.
            self._count(partition, "expired", earlier.offsets)
        self._hold(partition, span)

    def count_acknowledged(
        self, partition: PartitionKey, batches: list[AcknowledgementBatch], sent_ms: int
    ) -> None:
        """Count acknowledgements that the broker accepted. The request was sent at `sent_ms`."""
        for batch in batches:
            for first, last, kind in batch.runs():
                expired = self._expired.take(partition, first, last)
                if expired:
                    # These locks had not ended after all. Only the row is corrected: the totals are counters
                    # of Prometheus, which never decrease.
                    offsets = sum(span.offsets for span in expired)
                    self.group.row(partition, self._member_id).expired -= offsets
                for span in (*expired, *self._held.take(partition, first, last)):
                    self._count_acknowledged_range(partition, span, kind, sent_ms)

    def count_refused(self, partition: PartitionKey, batches: list[AcknowledgementBatch]) -> None:
        """Count acknowledgements that the broker refused, because the member does not hold one of the
        offsets.

        The broker accepted no acknowledgement of `batches`, so the member still holds the other offsets.
        """
        self._shared.totals.refused += 1
        for batch in batches:
            for span in self._expired.take(partition, batch.first, batch.last):
                self._count(partition, "late", span.offsets)

    def _count_acknowledged_range(
        self, partition: PartitionKey, span: OffsetRange, kind: int, sent_ms: int
    ) -> None:
        """Count a range, or a part of one, that was acknowledged."""
        row = self._count(partition, _COUNT_NAMES[kind], span.offsets)
        if kind == AcknowledgeType.RENEW:
            self._hold(partition, span._replace(until_ms=sent_ms + (self.group.lock_ms or DEFAULT_LOCK_MS)))
            return
        if kind == AcknowledgeType.GAP:
            return
        took_ms = max(sent_ms - span.acquired_ms, 0)
        row.processed_ms += took_ms * span.offsets
        row.processed_max_ms = max(row.processed_max_ms, took_ms)
        if kind == AcknowledgeType.ACCEPT:
            self.group.suspects.record_accepted(partition, span)
        else:
            self._record_end(_COUNT_NAMES[kind], partition, span)

    def _hold(self, partition: PartitionKey, span: OffsetRange) -> None:
        """Follow a range until its outcome. Without capacity, count it as not followed."""
        if not self._held.add(partition, span):
            self._count(partition, "unfollowed", span.offsets)

    def _count(self, partition: PartitionKey, name: str, offsets: int) -> Counted:
        """Add offsets to the count `name` of this member and partition, and to the totals. Return the
        counts of the member and partition.
        """
        row = self.group.row(partition, self._member_id)
        for counted in (row, self._shared.totals.counted):
            setattr(counted, name, getattr(counted, name) + offsets)
        return row

    def _record_end(self, what: str, partition: PartitionKey, span: OffsetRange) -> None:
        """Record how a delivery ended (`Suspects.record_end`), and add new suspects to the totals."""
        suspects = self.group.suspects
        suspected_before = suspects.suspected
        suspects.record_end(what, partition, span, self._member_id, self.group.limit)
        self._shared.totals.suspected += suspects.suspected - suspected_before


class _ResponseCounter(ShareResponseHandler):
    """The handler of a leader's response: counts the acquired records, and the request's acknowledgements."""

    def __init__(self, member: MemberDeliveries, request: Any, clock_ms: Callable[[], int]) -> None:
        self._member = member
        self._clock_ms = clock_ms
        self._is_final = request.share_session_epoch == _FINAL_EPOCH
        # If the request has too many acknowledgements to follow, the outcome of the member's ranges is
        # unknown.
        self._batches, self._has_too_many = batches_of(request)
        self._is_counted = False
        """True if the response has no error, and there is capacity for the member's group."""
        self.sent_ms = clock_ms()

    def begin(self, error_code: int, lock_ms: int | None) -> None:
        is_error = error_code != 0
        self._is_counted = not is_error and self._member.begin()
        if lock_ms and self._is_counted:  # 0 or None if the response does not report the lock's duration
            self._member.group.lock_ms = lock_ms

    def acknowledged(self, topic_id: bytes, partition: int, error_code: int) -> None:
        """Count the request's acknowledgements of a partition by the leader's answer."""
        key = topic_id, partition
        batches = self._batches.pop(key, None)
        if batches is None or not self._is_counted:
            return
        if not error_code:
            self._member.count_acknowledged(key, batches, self.sent_ms)
        elif error_code == _INVALID_RECORD_STATE:
            self._member.count_refused(key, batches)

    def acquired(self, topic_id: bytes, partition: int, first: int, last: int, delivery_count: int) -> None:
        if self._is_counted:
            now_ms = self._clock_ms()
            until_ms = now_ms + (self._member.group.lock_ms or DEFAULT_LOCK_MS)
            span = OffsetRange(first, last, delivery_count, now_ms, until_ms)
            self._member.count_acquired((topic_id, partition), span)

    def end(self) -> None:
        """Drop the member's ranges if their outcome is unknown, or release them if the session has ended."""
        self._member.finish_response(self)
        if self._has_too_many:
            self._member.unfollow()
        if self._is_final and self._is_counted:
            self._member.release()
