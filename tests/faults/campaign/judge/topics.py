"""The topics as the judge reads them: requests in the log's order, answers by request, events, offsets."""

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct

from tests.campaigns.reading import Record

PACK = b"pack\n"
UNANSWERED = ("TopicMetadata", "CONNECTION_CLOSED", "GATEWAY_STARTED")
"""The types of requests that have no answer."""


class Assigned(Struct):
    member_id: str = ""
    assignment: bytes = b""


class Given(Struct):
    """Partitions of a topic in a heartbeat of the consumer protocol or in its answer."""

    topic_id: UUID
    partitions: list[int] = []


Owned = frozenset[tuple[UUID, int]]
"""Partitions by topic id."""


def _together(given: Iterable[Given]) -> Owned:
    return frozenset((topic.topic_id, number) for topic in given for number in topic.partitions)


class Body(Struct):
    """The fields of a request that the judge looks at."""

    type: str = ""
    group_id: str = ""
    client_id: str = ""
    member: str | None = msgspec.field(default="", name="member_id")
    member_epoch: int = -1
    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_partitions: list[Given] | None = None
    generation_id: int = -1
    session_timeout_ms: int = 0
    assignments: list[Assigned] = []
    topics: Any = None
    connection: str = ""
    mq_set: list[tuple[str, str, int]] = []
    producer_id: int = -1
    producer_epoch: int = -1
    txn_version: int = 1
    txn_partition: int = -1
    txn_position: int = -1
    first_position: int = -1
    committed: bool = False
    require_stable: bool = False

    @property
    def member_id(self) -> str:
        """ "" for a request of no member."""
        return self.member or ""

    @property
    def owned(self) -> Owned | None:
        """The partitions that a member reports as its own, or None if it reports none."""
        return None if self.topic_partitions is None else _together(self.topic_partitions)


class Answer(Struct):
    """The fields of an answer that the judge looks at."""

    type: str = ""
    request: str = ""
    error_code: int = 0
    code: int = 0
    member: str | None = msgspec.field(default="", name="member_id")
    member_epoch: int = 0
    generation_id: int = -1
    leader: str = ""
    dealt: bytes | list[Given] | None = msgspec.field(default=b"", name="assignment")
    topics: Any = None
    lock_ok_mq_set: list[tuple[str, str, int]] = []

    @property
    def member_id(self) -> str:
        """ "" in an answer without one."""
        return self.member or ""

    @property
    def assignment(self) -> bytes:
        """Return the assignment that the leader of a classic group gave the member."""
        return self.dealt if isinstance(self.dealt, bytes) else b""

    @property
    def given(self) -> Owned | None:
        """The partitions that a member of the consumer protocol may use, or None if the answer has none."""
        return _together(self.dealt) if isinstance(self.dealt, list) else None


class Event(Struct):
    """The fields of an entry of the events topic that the judge looks at."""

    type: str = ""
    group_id: str = ""
    group_type: str = "classic"
    incarnation: str = ""
    seq: int = 0
    at_ms: int = 0
    reason: str = ""
    cause: str = ""
    member_id: str | None = None
    replaced_member_id: str | None = None
    connection: str | None = None
    generation: int = -1
    superseded: str | None = None


@dataclass(slots=True)
class Request:
    """A request. `clock_ms` is the time of its group when it is applied: no time before it is later, and a
    record of an outage is applied at the outage's end.
    """

    id: str
    place: tuple[int, int, int]
    at_ms: int
    clock_ms: int
    body: Body


class Outage(NamedTuple):
    after_ms: int
    until_ms: int


@dataclass
class Evidence:
    """Everything that is judged."""

    requests: list[Request] = field(default_factory=list)
    answers: dict[str, dict[bytes, int]] = field(default_factory=dict)
    """By request: how often each answer of the query is on the topic."""
    early: dict[str, dict[bytes, int]] = field(default_factory=dict)
    """By request: how often each early answer is there, without answers of replaced replicas."""
    answered: dict[str, Answer] = field(default_factory=dict)
    """By request: its first answer."""
    dead: set[str] = field(default_factory=set)
    """The requests with a dead letter."""
    events: list[Event] = field(default_factory=list)
    entries: dict[tuple[str, str, int], dict[bytes, int]] = field(default_factory=dict)
    """By group, incarnation and seq: how often each entry is on the topic."""
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """By group, topic and partition: the last record of the offsets topic."""
    outages: list[Outage] = field(default_factory=list)

    def by_group(self) -> dict[str, list[Request]]:
        """Return the requests of each group in the order of the log."""
        groups: dict[str, list[Request]] = defaultdict(list)
        for request in self.requests:
            groups[request.body.group_id].append(request)
        return groups

    def accepted(self, requests: Iterable[Request], *types: str) -> Iterator[tuple[Request, Answer]]:
        """Yield the requests, of these types or of all, that were answered without an error."""
        for request in requests:
            answer = self.answered.get(request.id)
            if answer is not None and not answer.error_code and (not types or request.body.type in types):
                yield request, answer

    def outage_between(self, since_ms: int, until_ms: int) -> Outage | None:
        """Return an outage that reaches into a time."""
        return next((it for it in self.outages if since_ms < it.until_ms and it.after_ms < until_ms), None)

    def outage_ms(self, since_ms: int, until_ms: int) -> int:
        """Return the total time of outages within a period."""
        return sum(max(0, min(it.until_ms, until_ms) - max(it.after_ms, since_ms)) for it in self.outages)

    def incarnation_at(self, group_id: str) -> "Incarnations":
        """Return the lives of a group, from each creation to its end."""
        return Incarnations(event.incarnation for event in self.events if event.group_id == group_id)


class Incarnations:
    """The requests that created a group. Each life of the group lasts from its request to the next one."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._places = sorted({place_of(one) for one in ids if one})

    def at(self, place: tuple[int, int, int]) -> int:
        """Return the number of the life to which a request of the group belongs."""
        return bisect.bisect_right(self._places, place)


def place_of(request_id: str) -> tuple[int, int, int]:
    """Return (partition, offset, number in the pack) of `<topic>-<partition>-<offset>[#<number>]`."""
    record, _, number = request_id.partition("#")
    _, partition, offset = record.rsplit("-", 2)
    return int(partition), int(offset), int(number or 0)


def unpack(value: bytes) -> Sequence[bytes]:
    return value[len(PACK) :].split(b"\n") if value.startswith(PACK) else (value,)


def evidence(
    requests_topic: str,
    *,
    requests: Iterable[Record],
    responses: Iterable[Record] = (),
    events: Iterable[Record] = (),
    dead_letters: Iterable[Record] = (),
    offsets: Iterable[Record] = (),
    outages: Iterable[tuple[int, int]] = (),
) -> Evidence:
    """Decode the records."""
    found = Evidence(outages=sorted(Outage(*outage) for outage in outages))
    found.requests = list(_requests(requests_topic, requests, found.outages))
    for value, is_early in _that_count(responses):
        answer = _decode(_answer, value)
        if answer is not None and answer.type not in ("NOTIFY_CONSUMER_IDS_CHANGED", "CLOSE_CONNECTION"):
            counts = (found.early if is_early else found.answers).setdefault(answer.request, {})
            counts[value] = counts.get(value, 0) + 1
            found.answered.setdefault(answer.request, answer)
    for record in events:
        event = _decode(_event, record.value or b"")
        if event is not None and event.group_id:
            counts = found.entries.setdefault((event.group_id, event.incarnation, event.seq), {})
            if not counts:
                found.events.append(event)
            counts[record.value or b""] = counts.get(record.value or b"", 0) + 1
    for record in dead_letters:
        found.dead.add(_dead_letter.decode(record.value or b"{}").request)
    for record in offsets:
        group_id, topic, partition = _key.decode(record.key or b"[]")
        committed = -1 if record.value is None else _offset.decode(record.value).offset
        found.offsets[group_id, topic, partition] = committed
    return found


def _that_count(responses: Iterable[Record]) -> Iterator[tuple[bytes, bool]]:
    """Yield the answers, and whether each is early. Behind a marker, those of the replicas before the one
    that it names do not count: a replica is `<epoch>.<number>`, and `early` has it and a time.
    """
    first: dict[int, tuple[int, ...]] = {}
    for record in responses:
        headers = dict(record.headers)
        marker, early = headers.get("replicas-since"), headers.get("early")
        if marker is not None:
            first[record.partition] = max(_replica(marker), first.get(record.partition, ()))
        elif early is None or _replica(early.split(b" ")[0]) >= first.get(record.partition, ()):
            for value in unpack(record.value or b""):
                yield value, early is not None


def _replica(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b".")))


def _requests(topic: str, records: Iterable[Record], outages: list[Outage]) -> Iterator[Request]:
    clocks: dict[str, int] = defaultdict(int)
    for record in sorted(records, key=lambda one: one[:2]):
        if record.key is None:
            continue  # a clock record
        value = record.value or b""
        name = f"{topic}-{record.partition}-{record.offset}"
        for number, part in enumerate(unpack(value)):
            body = _decode(_body, part) or Body()
            place = (record.partition, record.offset, number)
            clock_ms = max(clocks[body.group_id], _after_outages(record.at_ms, outages))
            clocks[body.group_id] = clock_ms
            request_id = f"{name}#{number}" if value.startswith(PACK) else name
            yield Request(request_id, place, record.at_ms, clock_ms, body)


def _after_outages(at_ms: int, outages: list[Outage]) -> int:
    for outage in outages:
        if outage.after_ms < at_ms <= outage.until_ms:
            return outage.until_ms
    return at_ms


class _DeadLetter(Struct):
    request: str = ""


class _Offset(Struct):
    offset: int


_body = msgspec.json.Decoder(Body)
_answer = msgspec.json.Decoder(Answer)
_event = msgspec.json.Decoder(Event)
_dead_letter = msgspec.json.Decoder(_DeadLetter)
_offset = msgspec.json.Decoder(_Offset)
_key = msgspec.json.Decoder(tuple[str, str, int])


def _decode(decoder: msgspec.json.Decoder[Any], value: bytes) -> Any:
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
