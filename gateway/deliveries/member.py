"""A member of a share group on its connection: the records that it holds, and their outcomes, without IO."""

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
        at = self.first
        for kind, same in groupby(self.types):
            end = at + sum(1 for _ in same)
            yield at, end - 1, kind
            at = end


def batches_of(request: Any) -> tuple[dict[PartitionKey, list[AcknowledgementBatch]], bool]:
    """Return the acknowledgements of a decoded request by partition, and True if the request has too many.

    Batches that every broker refuses are left out (KafkaApis.validateAcknowledgementBatches).
    """
    found: dict[PartitionKey, list[AcknowledgementBatch]] = {}
    left = TYPES_MAX
    for topic in request.topics or ():
        topic_id = topic.topic_id.bytes
        for partition in topic.partitions:
            for batch in partition.acknowledgement_batches or ():
                left -= len(batch.acknowledge_types)
                if left < 0:
                    return found, True
                checked = _batch(batch)
                if checked is not None:
                    found.setdefault((topic_id, partition.partition_index), []).append(checked)
    return found, False


def _batch(batch: Any) -> AcknowledgementBatch | None:
    first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
    if last < first or not types or len(types) not in (1, last - first + 1):
        return None
    if min(types) < AcknowledgeType.GAP or max(types) > AcknowledgeType.RENEW:
        return None
    return AcknowledgementBatch(first, last, bytes(types))


HELD_MAX = 10_000
"""The maximum number of ranges that are followed for one member."""
LOST_MAX = 1_000
"""The maximum number of one member's ranges whose locks have ended but which may still be acknowledged."""
GRACE_MS = 1_000
"""A lock has certainly ended this long after its end by the gateway's clock, because the broker started the
lock earlier.
"""
DEFAULT_LOCK_MS = 30_000
"""Kafka's default of group.share.record.lock.duration.ms, until a broker reports it."""
_FINAL_EPOCH = -1  # ShareRequestMetadata
_INVALID_RECORD_STATE = 121  # org.apache.kafka.common.protocol.Errors
_NAMES: Mapping[int, str] = MappingProxyType(
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
    held: CapacityCounter
    lost: CapacityCounter
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
        self._joined: DeliveryCounts | None = None
        self._member_id = member_id
        self._shared = shared
        self._held = HeldRanges(shared.held, HELD_MAX)
        self._lost = HeldRanges(shared.lost, LOST_MAX)
        self._unanswered: dict[_Answer, int] = {}
        """The time at which each unanswered request was sent."""

    @property
    def joined(self) -> DeliveryCounts | None:
        """The member's group, or None if it has not joined (`begin`)."""
        return self._joined

    @property
    def group(self) -> DeliveryCounts:
        """The group of a member that has joined. A member that holds ranges has joined."""
        assert self._joined is not None, "a member without a group has nothing"
        return self._joined

    def begin(self) -> bool:
        """Join the group, because a leader has answered without an error. Return True if the member is
        counted.
        """
        if self._joined is None and not self.has_ended:
            self._joined = self._join()
        return self._joined is not None and not self.has_ended

    def watch(self, header: RequestHeader, request: Any) -> Callable[[bytes], object]:
        """Count a decoded request to the broker. Return the function that receives the response's parts."""
        answer = _Answer(self, request, self._shared.clock_ms)
        self._unanswered[answer] = answer.sent_ms
        return share_response_reader(header, answer).feed

    def finish_answer(self, answer: "_Answer") -> None:
        """Record that a response has been read completely."""
        self._unanswered.pop(answer, None)

    def expire(self) -> None:
        """Count the locks that ended before the oldest unanswered request was sent.

        Ranges whose locks ended later may have been acknowledged by that request.
        """
        now_ms = min(self._unanswered.values(), default=self._shared.clock_ms())
        for partition, span in self._held.take_expired(now_ms - GRACE_MS):
            self._add(partition, "expired", span.offsets)
            self._record_end("ended", partition, span)
            self._lost.add(partition, span)

    def end(self) -> None:
        """End the member, because its connection has ended. The broker then releases the member's records."""
        self.release()
        self.has_ended = True
        self._unanswered.clear()
        self._lost.take_all()

    def release(self) -> None:
        """Count the ranges that the broker releases because the member's session has ended."""
        for partition, span in self._held.take_all():
            self._add(partition, "ended", span.offsets)
            self._record_end("ended", partition, span)

    def unfollow(self) -> None:
        """Drop all held ranges of the member, because their outcome is unknown."""
        for partition, span in self._held.take_all():
            self._add(partition, "unfollowed", span.offsets)

    def acquired(self, partition: PartitionKey, span: OffsetRange) -> None:
        """Count a range that the member acquired."""
        self._add(partition, "delivered", span.offsets)
        if span.delivery_count > 1:
            self._add(partition, "redelivered", span.offsets)
            self.group.suspects.record_acquired(partition, span)
        if span.delivery_count >= self.group.limit:
            self._add(partition, "last", span.offsets)
        elif span.delivery_count == self.group.limit - 1:
            self._add(partition, "before_last", span.offsets)
        self._lost.take(partition, span.first, span.last)
        for before in self._held.take(partition, span.first, span.last):
            self._add(partition, "expired", before.offsets)  # the broker's clock was ahead
        self._hold(partition, span)

    def acknowledged(
        self, partition: PartitionKey, batches: list[AcknowledgementBatch], sent_ms: int
    ) -> None:
        """Count acknowledgements that the broker accepted."""
        for batch in batches:
            for first, last, kind in batch.runs():
                lost = self._lost.take(partition, first, last)
                if lost:  # the locks had not ended after all; the totals must not decrease
                    self.group.row(partition, self._member_id).expired -= sum(span.offsets for span in lost)
                for span in (*lost, *self._held.take(partition, first, last)):
                    self._count_acknowledged(partition, span, kind, sent_ms)

    def refused(self, partition: PartitionKey, batches: list[AcknowledgementBatch]) -> None:
        """Count acknowledgements that the broker refused, because the member does not hold one of the
        offsets.

        The broker accepted no acknowledgement of `batches`, so the member still holds the other offsets.
        """
        self._shared.totals.refused += 1
        for batch in batches:
            for span in self._lost.take(partition, batch.first, batch.last):
                self._add(partition, "late", span.offsets)

    def _count_acknowledged(
        self, partition: PartitionKey, span: OffsetRange, kind: int, sent_ms: int
    ) -> None:
        """Count a range, or a part of one, that was acknowledged."""
        row = self._add(partition, _NAMES[kind], span.offsets)
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
            self._record_end(_NAMES[kind], partition, span)

    def _hold(self, partition: PartitionKey, span: OffsetRange) -> None:
        if not self._held.add(partition, span):
            self._add(partition, "unfollowed", span.offsets)

    def _add(self, partition: PartitionKey, name: str, offsets: int) -> Counted:
        row = self.group.row(partition, self._member_id)
        for counted in (row, self._shared.totals.counted):
            setattr(counted, name, getattr(counted, name) + offsets)
        return row

    def _record_end(self, what: str, partition: PartitionKey, span: OffsetRange) -> None:
        suspects = self.group.suspects
        before = suspects.found
        suspects.record_end(what, partition, span, self._member_id, self.group.limit)
        self._shared.totals.suspected += suspects.found - before


class _Answer(ShareResponseHandler):
    def __init__(self, member: MemberDeliveries, request: Any, clock_ms: Callable[[], int]) -> None:
        self._member = member
        self._clock_ms = clock_ms
        self._is_final = request.share_session_epoch == _FINAL_EPOCH
        # If the request has too many acknowledgements to follow, the outcome of the member's ranges is
        # unknown.
        self._batches, self._is_cut = batches_of(request)
        self._is_counted = False
        self.sent_ms = clock_ms()

    def begin(self, error_code: int, lock_ms: int | None) -> None:
        self._is_counted = not error_code and self._member.begin()
        if lock_ms and self._is_counted:
            self._member.group.lock_ms = lock_ms

    def acknowledged(self, topic_id: bytes, partition: int, error_code: int) -> None:
        key = topic_id, partition
        batches = self._batches.pop(key, None)
        if batches is None or not self._is_counted:
            return
        if not error_code:
            self._member.acknowledged(key, batches, self.sent_ms)
        elif error_code == _INVALID_RECORD_STATE:
            self._member.refused(key, batches)

    def acquired(self, topic_id: bytes, partition: int, first: int, last: int, delivery_count: int) -> None:
        if self._is_counted:
            now_ms = self._clock_ms()
            until_ms = now_ms + (self._member.group.lock_ms or DEFAULT_LOCK_MS)
            span = OffsetRange(first, last, delivery_count, now_ms, until_ms)
            self._member.acquired((topic_id, partition), span)

    def end(self) -> None:
        self._member.finish_answer(self)
        if self._is_cut:
            self._member.unfollow()
        if self._is_final and self._is_counted:
            self._member.release()
