"""A client on the coordinator's topics. It writes packs or single records, which are encoded beforehand.

A record is encoded once, with a mark in the place of its number. The number replaces the mark when the record
is sent. librdkafka writes and reads, on threads that need no interpreter.
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
    join_request,
    leave_request,
    sync_request,
)
from kafka_why.contract.codec import PACK_MAX_BYTES, PACK_MAX_REQUESTS, pack, pack_key, slot_of, unpack
from kafka_why.contract.early_answers import EarlyAnswers
from kafka_why.contract.kafka.requests import AnyAnswered, JoinGroup
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.partitioner import partition_of

SILENCE_S = 300.0
_MARK = b"@@@@@@@@"
_DIGITS = len(_MARK)
_AT_ONCE = 10_000
_PACE_S = 0.005
_ASK_UNDER_WAY = 60_000

_encode = msgspec.json.Encoder().encode


class _Partition(Struct):
    error_code: int = 0


class _Topic(Struct):
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
    """A record of the requests topic with a mark in the place of its number, and how many requests it has."""

    partition: int
    key: bytes
    value: bytes
    requests: int


@dataclass(slots=True)
class _UnderWay:
    """A record: when it was due, its number of requests, and the places of those that were answered."""

    due_s: float
    requests: int
    answered: set[str] = field(default_factory=set)


class TopicsClient:
    """Sends records of requests, and matches the responses. For one thread.

    Correlation ids are `<number of the record>.<place of the request>`.
    """

    def __init__(self, servers: str, prefix: str, *, packed: bool = True) -> None:
        self._layout = TopicLayout.named(prefix)
        self._packed = packed
        # Random, because responses to a client that used the reply partition before may still come.
        self._sent = random.getrandbits(30)
        self._counting = EarlyAnswers()
        self._under_way: dict[int, _UnderWay] = {}
        """By number of a record."""
        self._waiting = 0
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

    def records(self, requests: Sequence[AnyAnswered], *, packed: bool | None = None) -> list[Record]:
        """Encode requests: a record each, or packs by partition and slot, each in the order of the requests.

        If `packed` is None, the client's own setting holds.
        """
        packed = self._packed if packed is None else packed
        return encoded(requests, self._request_partitions, packed=packed)

    def send(self, record: Record, due_s: float, on_append: Callable[[Message], None] | None = None) -> None:
        """Append a record. `on_append` gets the record that the broker has acknowledged."""
        number = self._sent = self._sent + 1
        self._under_way[number] = _UnderWay(due_s, record.requests)
        self._waiting += record.requests
        self._producer.produce(
            self._layout.requests_topic,
            record.value.replace(_MARK, b"%0*x" % (_DIGITS, number)),
            record.key,
            record.partition,
            on_delivery=lambda error, message: _appended(error, message, on_append),
        )

    def receive(self, timeout_s: float) -> Iterator[tuple[int, float, Answer]]:
        """Yield the responses that come in time: the place of the request, when it was due, the response."""
        self._producer.poll(0)
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        for message in (first, *self._consumer.consume(_AT_ONCE, 0)):
            if message.error():
                raise WrongAnswer(f"the responses topic cannot be read: {message.error()}")
            headers: Any = message.headers()
            if not self._counting.accepts(message.partition(), headers):
                continue  # a marker, or of a replica that has been replaced
            for value in unpack(message.value() or b""):
                answer = _decode(value)
                number, _, place = answer.correlation_id.partition(".")
                waiting = self._under_way.get(int(number, 16)) if place else None
                if waiting is None or place in waiting.answered:
                    continue  # the second answer, or one to a client that used this reply partition before
                waiting.answered.add(place)
                self._waiting -= 1
                if len(waiting.answered) == waiting.requests:
                    del self._under_way[int(number, 16)]
                yield int(place), waiting.due_s, answer

    def ask(self, requests: Sequence[AnyAnswered]) -> list[Answer]:
        """Send all requests, with a bound on those under way. Return their responses in the same order."""
        answers: dict[int, Answer] = {}
        records = iter(self.records(requests))
        record = next(records, None)
        while record or self._waiting:
            while record and self._waiting < _ASK_UNDER_WAY:
                self.send(record, time.perf_counter())
                record = next(records, None)
            answers.update((place, answer) for place, _, answer in self._some())
        return [answers[place] for place in range(len(requests))]

    def one(self, record: Record) -> float:
        """Send one record and wait for its responses. Return the seconds. Raises WrongAnswer for an error."""
        began_s = time.perf_counter()
        self.send(record, began_s)
        while self._waiting:
            for _, _, answer in self._some():
                expect_no_error(answer)
        return time.perf_counter() - began_s

    def closed(self, records: Iterator[Record], under_way: int, seconds: float) -> LoadResult:
        """Keep so many requests under way, or at least one record, then wait for the last responses."""
        counting = _Counting()
        end_s = counting.began_s + seconds
        record = next(records)
        while True:
            if time.perf_counter() < end_s:
                while not self._waiting or self._waiting + record.requests <= under_way:
                    self.send(record, time.perf_counter())
                    record = next(records)
            elif not self._waiting:
                return counting.result()
            for _, due_s, answer in self._some():
                counting.count(due_s, answer)

    def at_rate(self, records: Iterator[Record], rate: float, seconds: float) -> LoadResult:
        """Send so many requests a second, whatever is answered, then wait for the last responses."""
        counting = _Counting()
        due_s, end_s = counting.began_s, counting.began_s + seconds
        while due_s < end_s or self._waiting:
            while due_s < min(time.perf_counter(), end_s):
                record = next(records)
                self.send(record, due_s)
                due_s += record.requests / rate
            responses = self.receive(_PACE_S) if due_s < end_s else self._some()
            for _, was_due_s, answer in responses:
                counting.count(was_due_s, answer)
        return counting.result()

    def form(self, group_ids: Sequence[str], size: int = 1, **join: int) -> list[Membership]:
        """Bring groups of this many members to Stable. Return the members, group by group."""
        joins: list[JoinGroup] = [join_request(group, **join) for group in group_ids for _ in range(size)]
        answers = [expect_no_error(answer) for answer in self.ask(joins)]
        members = [
            Membership(request.group_id, answer.member_id, answer.generation_id)
            for request, answer in zip(joins, answers, strict=True)
        ]
        syncs = []
        for first in range(0, len(members), size):
            whole = members[first : first + size]
            leader = answers[first].leader
            syncs += [sync_request(m, whole if m.member_id == leader else ()) for m in whole]
        for answer in self.ask(syncs):
            expect_no_error(answer)
        return members

    def end(self, members: Sequence[Membership]) -> None:
        """Remove these members and delete their groups, so that later measurements are without them."""
        groups: dict[str, list[Membership]] = {}
        for member in members:
            groups.setdefault(member.group_id, []).append(member)
        self.ask([leave_request(group) for group in groups.values()])
        for answer in self.ask([delete_request(group_id) for group_id in groups]):
            if answer.error != ErrorCode.GROUP_ID_NOT_FOUND:  # it has ended by itself
                expect_no_error(answer)

    def _some(self) -> Iterator[tuple[int, float, Answer]]:
        """Wait for some responses, and yield them. Raises WrongAnswer if none come."""
        give_up_s = time.monotonic() + SILENCE_S
        found = False
        while not found:
            for item in self.receive(0.1):
                found = True
                yield item
            if not found and time.monotonic() > give_up_s:
                raise WrongAnswer(f"no response for {SILENCE_S:.0f} s, {self._waiting} are missing")


class _Counting:
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


def encoded(requests: Sequence[AnyAnswered], partitions: int, *, packed: bool) -> list[Record]:
    """Encode requests for `TopicsClient.records`. `partitions` are those of the requests topic."""
    sorted_out: dict[tuple[int, int], list[bytes]] = {}
    records = []
    for place, request in enumerate(requests):
        partition = partition_of(request.group_id, partitions)
        value = _encode(structs.replace(request, correlation_id=f"{_MARK.decode()}.{place}"))
        if packed:
            sorted_out.setdefault((partition, slot_of(request.group_id)), []).append(value)
        else:
            records.append(Record(partition, request.group_id.encode(), value, 1))
    for (partition, slot), values in sorted_out.items():
        records += [Record(partition, pack_key(slot), pack(part), len(part)) for part in _parts(values)]
    return records


def _parts(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Cut the requests of a slot into packs."""
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
