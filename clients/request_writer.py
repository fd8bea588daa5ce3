"""The writer of a client's requests to the requests topic.

Requests share records: a pack is a record with several requests, all of one slot (`PackSlot`). While the last
records of a partition are not acknowledged, requests wait in the queue of their slot. The waiting requests
of a slot form its next record, a pack. A coordinator that divides a partition into too many shards refuses
packs. After the first refusal, the writer writes each request in its own record.

A partition's records are written in rounds, with at most one record of each slot. The next round begins when
all records of the last one are acknowledged. So a group's requests are in the log in the order in which they
were added, independently of the producer. Slots share rounds, because librdkafka's idempotent producer has at
most five writes in flight, and polls without a pause while further records wait (decision 15).

`write` never waits for a broker, because librdkafka has its own thread. Another thread of the writer receives
the acknowledgements and then writes waiting requests.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from clients.pending import PendingRequest, PendingRequests, RequestTooLarge
from kafka_why.contract.codec import PACK_MAX_BYTES, PACK_MAX_REQUESTS, encode, pack, pack_key, slot_of
from kafka_why.contract.layout import excess
from kafka_why.partitioner import CACHED_MAX_CHARACTERS, partition_of

_CACHED_GROUPS_MAX = 20_000

_Queue: TypeAlias = deque[tuple[PendingRequest, bytes]]  # each request with its encoded message


class PackSlot(NamedTuple):
    """The groups whose requests may share a pack: those with the same partition of the requests topic and
    the same hash slot (`kafka_why.contract.codec`). A shard of the coordinator, a part of a partition's
    groups, has whole slots, so it gets whole packs.
    """

    partition: int
    slot: int


def pack_slot_of(group_id: str, partitions: int) -> PackSlot:
    """Return the slot of a group's requests. It is cached, except for long group ids, to bound the memory."""
    if len(group_id) > CACHED_MAX_CHARACTERS:
        return _pack_slot_of(group_id, partitions)
    return _cached_pack_slot_of(group_id, partitions)


def _pack_slot_of(group_id: str, partitions: int) -> PackSlot:
    return PackSlot(partition_of(group_id, partitions), slot_of(group_id))


_cached_pack_slot_of = lru_cache(_CACHED_GROUPS_MAX)(_pack_slot_of)


@dataclass(frozen=True, slots=True, eq=False)
class RequestRecord:
    """A record to write, and the requests in it."""

    pack_slot: PackSlot
    key: bytes
    value: bytes
    requests: Sequence[PendingRequest]


class Packer:
    """The queues of encoded requests, one for each `PackSlot`, from which records are built. Not
    thread-safe.
    """

    def __init__(self, max_requests: int = PACK_MAX_REQUESTS, max_bytes: int = PACK_MAX_BYTES) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.packs = True
        """True if requests are packed. Otherwise each request gets its own record."""
        self._waiting: dict[int, dict[PackSlot, _Queue]] = {}
        """By partition, the queue of each slot. The slot that has waited longest is first."""
        self._unacknowledged: dict[int, int] = {}
        """By partition, the number of unacknowledged records of its round. It is absent if there are none."""

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and no record is unacknowledged."""
        return not self._waiting and not self._unacknowledged

    def add(self, pack_slot: PackSlot, request: PendingRequest, message: bytes) -> None:
        """Add a request at the end of its slot's queue. `message` is the encoded request."""
        queues = self._waiting.setdefault(pack_slot.partition, {})
        queues.setdefault(pack_slot, deque()).append((request, message))

    def next_records(self) -> list[RequestRecord]:
        """Return the records of the next round of each partition that has no unacknowledged record.

        The records count as unacknowledged until `finish_write`. Requests that are no longer wanted are left
        out.
        """
        records: list[RequestRecord] = []
        for partition in self._waiting.keys() - self._unacknowledged.keys():
            queues = self._waiting[partition]
            next_round = [
                record
                for pack_slot in [*queues]  # a copy, because `_take_record` removes empty queues
                if (record := self._take_record(pack_slot, queues)) is not None
            ]
            if next_round:
                self._unacknowledged[partition] = len(next_round)
                records += next_round
            if not queues:
                del self._waiting[partition]
        return records

    def finish_write(self, pack_slot: PackSlot) -> None:
        """Record that the write of a slot's record has ended, successfully or not. The last write of a round
        ends the partition's round.
        """
        still_unacknowledged = self._unacknowledged.pop(pack_slot.partition) - 1
        if still_unacknowledged:
            self._unacknowledged[pack_slot.partition] = still_unacknowledged

    def _take_record(self, pack_slot: PackSlot, queues: dict[PackSlot, _Queue]) -> RequestRecord | None:
        """Remove the first requests of the slot's queue, and return a record of them.

        Return None if no request in the queue is wanted.
        A request that exceeds the size limit of packs gets its own record.
        """
        queue = queues[pack_slot]
        requests: list[PendingRequest] = []
        messages: list[bytes] = []
        size_bytes = 0
        while queue and len(requests) < (self._max_requests if self.packs else 1):
            request, message = queue[0]
            if request.is_wanted():
                packed_bytes = len(message) + 1  # with its separator
                if requests and size_bytes + packed_bytes > self._max_bytes:
                    break
                requests.append(request)
                messages.append(message)
                size_bytes += packed_bytes
            queue.popleft()
        if not queue:
            del queues[pack_slot]
        if not requests:
            return None
        if self.packs and size_bytes <= self._max_bytes:
            return RequestRecord(pack_slot, pack_key(pack_slot.slot), pack(messages), requests)
        key = requests[0].request.group_id.encode()
        return RequestRecord(pack_slot, key, messages[0], requests)


_POLL_S = 0.1

_WriteOutcome: TypeAlias = tuple[RequestRecord, Exception | None]  # None if the record is acknowledged


class RequestWriter:
    """A thread-safe writer of requests of up to `max_bytes`. `make_producer` builds the producer, and a new
    producer after a permanent failure.
    """

    def __init__(
        self,
        make_producer: Callable[[], Producer],
        topic: str,
        partitions: int,
        pending: PendingRequests,
        name: str,
        max_bytes: int,
    ) -> None:
        self._topic = topic
        self._max_bytes = max_bytes
        self._partitions = partitions
        self._pending = pending
        self._make_producer = make_producer
        self._producer = make_producer()
        self._lock = threading.Lock()
        self._packer = Packer()
        # The outcomes that the producer's `poll` has reported and that are not yet applied.
        self._outcomes: deque[_WriteOutcome] = deque()
        self._close_at_s: float | None = None  # latest end of the writer's thread; None until `close`
        self._thread = threading.Thread(target=self._receive_acknowledgements, name=name, daemon=True)
        self._thread.start()

    def write(self, requests: Sequence[PendingRequest]) -> None:
        """Write requests that are in flight. Requests of one group are appended in this order.

        A request that cannot be written fails in `PendingRequests`.
        """
        encoded: list[tuple[PendingRequest, bytes]] = []
        for request in requests:
            try:
                message = encode(request.request)
            except Exception as error:  # noqa: BLE001 - the others must still be written
                self._pending.fail([request], error)
                continue
            if (excess_text := excess(message, self._max_bytes)) is not None:
                text = f"{request.describe()} is too large: {excess_text}"
                self._pending.fail([request], RequestTooLarge(text, len(message), self._max_bytes))
            else:
                encoded.append((request, message))
        with self._lock:
            for request, message in encoded:
                self._packer.add(pack_slot_of(request.request.group_id, self._partitions), request, message)
            records = self._packer.next_records()
        self._produce_all(records)

    def write_unpacked(self, requests: Sequence[PendingRequest]) -> None:
        """Write requests again whose packs the coordinator refused. Each gets its own record, and so do all
        later requests.
        """
        with self._lock:  # another thread may be building a pack
            self._packer.packs = False
        self.write(requests)

    def close(self, timeout_s: float) -> None:
        """Write waiting requests for at most `timeout_s`, and end the thread and the connections."""
        self._close_at_s = time.monotonic() + timeout_s
        self._thread.join()
        self._producer.purge()
        self._producer.flush(0)

    def _receive_acknowledgements(self) -> None:
        """Poll the producer, and write waiting requests when writes have ended.

        Return when the writer is closed and either all requests are written or the time of `close` is over.
        """
        while self._close_at_s is None or (not self._packer.is_idle and time.monotonic() < self._close_at_s):
            self._producer.poll(_POLL_S)
            if self._outcomes:
                # Other threads may append meanwhile.
                outcomes = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
                self._produce_all(self._apply_outcomes(outcomes))

    def _produce_all(self, records: Sequence[RequestRecord]) -> None:
        """Give records to the producer. If it refuses some, fail their requests and write waiting
        requests.
        """
        while records:
            producer = self._producer
            refused = self._produce(producer, records)
            if refused and _is_fatal(refused[0][1]):  # then it refuses all later records for the same reason
                self._replace(producer)
                refused = self._produce(self._producer, [record for record, _ in refused])
            records = self._apply_outcomes(refused) if refused else []

    def _produce(self, producer: Producer, records: Sequence[RequestRecord]) -> list[_WriteOutcome]:
        """Give records to a producer. Return the refused records with the reasons."""
        refused: list[_WriteOutcome] = []
        for record in records:
            # Not `produce_batch`, which ignores the partition of a message and costs more.
            try:
                producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    record.pack_slot.partition,
                    partial(self._on_delivery, record),
                )
            except (KafkaException, BufferError) as error:
                refused.append((record, error))
        return refused

    def _on_delivery(self, record: RequestRecord, error: KafkaError | None, _: Message) -> None:
        """Store the outcome of a write. The producer's `poll` and `flush` call it."""
        self._outcomes.append((record, None if error is None else KafkaException(error)))

    def _apply_outcomes(self, outcomes: Sequence[_WriteOutcome]) -> list[RequestRecord]:
        """Settle or fail the requests of these records, and end their writes. Return the records that may be
        written now.
        """
        for record, error in outcomes:
            if error is None:
                self._pending.settle_written(record.requests)
            else:
                self._pending.fail(record.requests, error)
        with self._lock:
            for record, _ in outcomes:
                self._packer.finish_write(record.pack_slot)
            return self._packer.next_records()

    def _replace(self, producer: Producer) -> None:
        """Replace a producer that has failed permanently."""
        with self._lock:
            if producer is not self._producer:
                return  # another thread has replaced it
            # An idempotent producer fails permanently when it cannot continue without a gap or a duplicate.
            self._producer = self._make_producer()
        producer.purge()
        producer.flush(0)


def _is_fatal(error: Exception | None) -> bool:
    """Return True if the producer that raised this error has failed permanently."""
    cause = error.args[0] if isinstance(error, KafkaException) else None
    return isinstance(cause, KafkaError) and (cause.fatal() or cause.code() == KafkaError._FATAL)
