"""A client on the coordinator's topics. It writes single requests, or packs (several requests in one record).

A record is encoded once, beforehand, with a placeholder that its number replaces when it is sent. librdkafka
writes and reads on its own threads, which do not need Python's interpreter lock.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from msgspec import Struct, structs

from bench.load.load_result import LoadResult, WrongAnswer
from bench.load.requests import (
    REPLY_PARTITION,
    Membership,
    delete_request,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from kafka_why.contract.codec import PACK_MAX_BYTES, PACK_MAX_REQUESTS, pack, pack_key, slot_of, unpack
from kafka_why.contract.early_answers import EarlyAnswers, as_of
from kafka_why.contract.kafka.requests import AnyAnsweredRequest, JoinGroup
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.partitioner import partition_of

SILENCE_S = 300.0
_PLACEHOLDER = b"@@@@@@@@"  # for the number of a record
_DIGITS = len(_PLACEHOLDER)
_POLL_RECORDS = 10_000
_PACE_S = 0.005  # the longest pause between two looks at what is due
_MAX_IN_FLIGHT = 60_000  # requests
_EARLY_IN_A_ROW = 5  # answers of the replica before it counts as running

_encode = msgspec.json.Encoder().encode


class _Partition(Struct):
    """The outcome of one partition, in a response to requests about offsets."""

    error_code: int = 0


class _Topic(Struct):
    """The outcomes of one topic's partitions."""

    partitions: list[_Partition] = []


class Answer(Struct):
    """The fields of a response that the measurements read."""

    correlation_id: str
    error_code: int = 0
    member_id: str = ""
    leader: str = ""
    generation_id: int = -1
    topics: list[_Topic] = []

    @property
    def error(self) -> int:
        """The first error code that is not 0, else 0."""
        codes = (partition.error_code for topic in self.topics for partition in topic.partitions)
        return self.error_code or next((code for code in codes if code), 0)


_decode = msgspec.json.Decoder(Answer).decode


class Record(NamedTuple):
    """A record for the requests topic with a placeholder for its number."""

    partition: int
    key: bytes
    value: bytes
    requests: int  # the number of requests in the record


@dataclass(slots=True)
class _InFlightRecord:
    """A record in flight: when it was due, its number of requests, and the indexes of the answered ones."""

    due_s: float
    requests: int
    answered: set[str] = field(default_factory=set)  # as text, from correlation ids


class TopicsClient:
    """Sends records of requests, and matches the responses. For one thread.

    Correlation ids are `<number of the record>.<index of the request>`.
    """

    def __init__(self, servers: str, prefix: str, *, packed: bool = True) -> None:
        self._layout = TopicLayout.named(prefix)
        self._packed = packed
        # It starts at random, because responses to an earlier client of the reply partition may still come.
        self._last_number = random.getrandbits(30)
        self._early_answers = EarlyAnswers()
        self._is_last_early = False  # the last response is the replica's
        self._in_flight: dict[int, _InFlightRecord] = {}
        """By number of a record."""
        self._unanswered = 0  # requests
        connection = {"bootstrap.servers": servers, "log_level": 4}
        self._producer = Producer({**connection, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
        self._request_partitions = len(
            self._producer.list_topics(self._layout.requests_topic, 30)
            .topics[self._layout.requests_topic]
            .partitions
        )
        self._consumer = Consumer(
            {**connection, "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 100}
        )
        replies = TopicPartition(self._layout.responses_topic, REPLY_PARTITION)
        _, replies.offset = self._consumer.get_watermark_offsets(replies, timeout=30)
        self._consumer.assign([replies])

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def records(self, requests: Sequence[AnyAnsweredRequest], *, packed: bool | None = None) -> list[Record]:
        """Encode requests in order, as one record each or as packs.

        A pack has requests of one partition and slot, a hash of the group id. If `packed` is None, the
        client's own setting applies.
        """
        packed = self._packed if packed is None else packed
        return encoded(requests, self._request_partitions, packed=packed)

    def send(self, record: Record, due_s: float, on_append: Callable[[Message], None] | None = None) -> None:
        """Append a record. `on_append` is called with the message when the broker has acknowledged it."""
        number = self._last_number = self._last_number + 1
        self._in_flight[number] = _InFlightRecord(due_s, record.requests)
        self._unanswered += record.requests
        self._producer.produce(
            self._layout.requests_topic,
            record.value.replace(_PLACEHOLDER, b"%0*x" % (_DIGITS, number)),
            record.key,
            record.partition,
            on_delivery=lambda error, message: _appended(error, message, on_append),
        )

    def receive(self, timeout_s: float) -> Iterator[tuple[int, float, Answer]]:
        """Yield each response that arrives in time, after the index and the due time of its request."""
        self._producer.poll(0)
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        for message in (first, *self._consumer.consume(_POLL_RECORDS, 0)):
            if message.error():
                raise WrongAnswer(f"the responses topic cannot be read: {message.error()}")
            headers: Any = message.headers()
            if not self._early_answers.accepts(message.partition(), headers):
                continue  # not a response, or one of a replica that has been replaced
            for value in unpack(message.value() or b""):
                answer = _decode(value)
                number, _, index = answer.correlation_id.partition(".")
                record = self._in_flight.get(int(number, 16)) if index else None
                if record is None or index in record.answered:
                    continue  # the query's repetition of an early answer, or an answer to an earlier client
                record.answered.add(index)
                self._unanswered -= 1
                if len(record.answered) == record.requests:
                    del self._in_flight[int(number, 16)]
                self._is_last_early = as_of(headers) is not None
                yield int(index), record.due_s, answer

    def ask(self, requests: Sequence[AnyAnsweredRequest]) -> list[Answer]:
        """Send all requests, a limited number at a time. Return their responses in the same order."""
        answers: dict[int, Answer] = {}
        records = iter(self.records(requests))
        record = next(records, None)
        while record or self._unanswered:
            while record and self._unanswered < _MAX_IN_FLIGHT:
                self.send(record, time.perf_counter())
                record = next(records, None)
            answers.update((index, answer) for index, _, answer in self._receive_some())
        return [answers[index] for index in range(len(requests))]

    def wait_for_replica(self) -> None:
        """Send heartbeats for a missing group, until the replica answers several in a row.

        The replica is the coordinator's process that answers before Spark's query does. Raises WrongAnswer
        after SILENCE_S.
        """
        (record,) = self.records([heartbeat_request(Membership("no group", "nobody", 0))])
        deadline_s, in_a_row = time.monotonic() + SILENCE_S, 0
        while in_a_row < _EARLY_IN_A_ROW:
            if time.monotonic() > deadline_s:
                raise WrongAnswer(f"for {SILENCE_S:.0f} s the replica has answered nothing")
            self.send(record, time.perf_counter())
            for _ in self._receive_some():
                in_a_row = in_a_row + 1 if self._is_last_early else 0

    def time_one(self, record: Record) -> float:
        """Send one record. Return the seconds until its last response. Raises WrongAnswer for an error."""
        began_s = time.perf_counter()
        self.send(record, began_s)
        while self._unanswered:
            for _, _, answer in self._receive_some():
                expect_no_error(answer)
        return time.perf_counter() - began_s

    def run_closed_loop(self, records: Iterator[Record], under_way: int, seconds: float) -> LoadResult:
        """Keep at most `under_way` requests (but at least one record) in flight, then wait for them."""
        counter = _LoadCounter()
        end_s = counter.began_s + seconds
        record = next(records)
        while True:
            if time.perf_counter() < end_s:
                while not self._unanswered or self._unanswered + record.requests <= under_way:
                    self.send(record, time.perf_counter())
                    record = next(records)
            elif not self._unanswered:
                return counter.result()
            for _, due_s, answer in self._receive_some():
                counter.count(due_s, answer)

    def run_at_rate(self, records: Iterator[Record], rate: float, seconds: float) -> LoadResult:
        """Send `rate` requests a second, however many are answered, then wait for the last responses."""
        counter = _LoadCounter()
        due_s, end_s = counter.began_s, counter.began_s + seconds
        while due_s < end_s or self._unanswered:
            while due_s < min(time.perf_counter(), end_s):
                record = next(records)
                self.send(record, due_s)
                due_s += record.requests / rate
            responses = self.receive(_PACE_S) if due_s < end_s else self._receive_some()
            for _, request_due_s, answer in responses:
                counter.count(request_due_s, answer)
        return counter.result()

    def form_groups(self, group_ids: Sequence[str], size: int = 1, **join: int) -> list[Membership]:
        """Form groups of `size` members each, until they are Stable. Return the members, group by group."""
        joins: list[JoinGroup] = [join_request(group, **join) for group in group_ids for _ in range(size)]
        answers = [expect_no_error(answer) for answer in self.ask(joins)]
        members = [
            Membership(request.group_id, answer.member_id, answer.generation_id)
            for request, answer in zip(joins, answers, strict=True)
        ]
        syncs = []
        for first in range(0, len(members), size):
            group = members[first : first + size]
            leader = answers[first].leader
            syncs += [sync_request(m, group if m.member_id == leader else ()) for m in group]
        for answer in self.ask(syncs):
            expect_no_error(answer)
        return members

    def end_groups(self, members: Sequence[Membership]) -> None:
        """Remove these members and delete their groups, so that they do not affect later measurements."""
        groups: dict[str, list[Membership]] = {}
        for member in members:
            groups.setdefault(member.group_id, []).append(member)
        self.ask([leave_request(group) for group in groups.values()])
        for answer in self.ask([delete_request(group_id) for group_id in groups]):
            if answer.error != ErrorCode.GROUP_ID_NOT_FOUND:  # the group has ended by itself
                expect_no_error(answer)

    def _receive_some(self) -> Iterator[tuple[int, float, Answer]]:
        """Wait for responses, and yield them. Raises WrongAnswer if none arrive for SILENCE_S."""
        deadline_s = time.monotonic() + SILENCE_S
        has_response = False
        while not has_response:
            for response in self.receive(0.1):
                has_response = True
                yield response
            if not has_response and time.monotonic() > deadline_s:
                raise WrongAnswer(f"no response for {SILENCE_S:.0f} s, {self._unanswered} are missing")


class _LoadCounter:
    """Counts the responses of one load."""

    def __init__(self) -> None:
        self.began_s = self._last_s = time.perf_counter()
        self._cpu_s = time.process_time()
        self._outcome = LoadResult()

    def count(self, due_s: float, answer: Answer) -> None:
        self._last_s = time.perf_counter()
        self._outcome.due_s.append(due_s - self.began_s)
        self._outcome.latency_s.append(self._last_s - due_s)
        if answer.error:
            self._outcome.errors[answer.error] += 1

    def result(self) -> LoadResult:
        self._outcome.took_s = self._last_s - self.began_s
        self._outcome.client_cores = (time.process_time() - self._cpu_s) / self._outcome.took_s
        return self._outcome


def expect_no_error(answer: Answer) -> Answer:
    """Return the response. Raises WrongAnswer if it has an error code."""
    if answer.error:
        raise WrongAnswer(f"unexpected error: {answer}")
    return answer


def encoded(requests: Sequence[AnyAnsweredRequest], partitions: int, *, packed: bool) -> list[Record]:
    """Encode requests for `TopicsClient.records`. `partitions` are those of the requests topic."""
    by_slot: dict[tuple[int, int], list[bytes]] = {}
    records = []
    for index, request in enumerate(requests):
        partition = partition_of(request.group_id, partitions)
        value = _encode(structs.replace(request, correlation_id=f"{_PLACEHOLDER.decode()}.{index}"))
        if packed:
            by_slot.setdefault((partition, slot_of(request.group_id)), []).append(value)
        else:
            records.append(Record(partition, request.group_id.encode(), value, 1))
    for (partition, slot), values in by_slot.items():
        records += [Record(partition, pack_key(slot), pack(part), len(part)) for part in _parts(values)]
    return records


def _parts(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Split the requests of a slot into packs within the limits of bytes and of requests."""
    part: list[bytes] = []
    size = 0
    for value in values:
        if part and (len(part) == PACK_MAX_REQUESTS or size + len(value) + 1 > PACK_MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(value)
        size += len(value) + 1
    yield part


def _appended(
    error: KafkaError | None, message: Message, on_append: Callable[[Message], None] | None
) -> None:
    if error is not None:
        raise WrongAnswer(f"a record was not appended: {error}")
    if on_append is not None:
        on_append(message)
