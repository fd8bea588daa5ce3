"""Topics by hand, for the tests of the campaign's judge."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from tests.campaigns.reading import Record
from tests.faults.campaign.judge.judging import Case, judge
from tests.faults.campaign.judge.topics import evidence
from tests.faults.campaign.judge.transactions import Outcomes

TOPIC = "orders"
REQUESTS = "c-requests"
SESSION_MS = 10_000
START_MS = 1_000_000


@dataclass
class Topics:
    """Hand-made topics: one request a second, with its answer. Each method appends, and returns itself."""

    requests: list[Record] = field(default_factory=list)
    responses: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    offsets: list[Record] = field(default_factory=list)
    outages: list[tuple[int, int]] = field(default_factory=list)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    committed: list[tuple[str, int, int]] = field(default_factory=list)
    aborted: list[tuple[str, int, int]] = field(default_factory=list)
    now_ms: int = START_MS
    seq: int = 0
    kind: str = ""
    request_id: str = ""

    def ask(self, kind: str, answer: dict[str, Any] | None, group: str = "g", **fields: Any) -> Self:
        """Append a request, a second after the last one, and its answer."""
        self.later(1_000)
        offset = len(self.requests)
        self.kind, self.request_id = kind, f"{REQUESTS}-0-{offset}"
        body = {"type": kind, "group_id": group, **fields}
        self.requests.append(Record(0, offset, self.now_ms, group.encode(), dumped(body)))
        return self if answer is None else self.answer(**answer)

    def answer(self, replica: str | None = None, **answer: Any) -> Self:
        """Append an answer to the last request: the query's, or an early one of this replica."""
        value = {"request": self.request_id, "error_code": 0, "type": self.kind, **answer}
        headers = [] if replica is None else [("early", f"{replica} {self.now_ms}".encode())]
        return self._respond(dumped(value), headers)

    def mark(self, first: str) -> Self:
        """Append a marker: replicas before this one are replaced."""
        return self._respond(None, [("replicas-since", first.encode())])

    def _respond(self, value: bytes | None, headers: list[tuple[str, bytes]]) -> Self:
        self.responses.append(Record(0, len(self.responses), self.now_ms, None, value, headers))
        return self

    def event(self, kind: str, **fields: Any) -> Self:
        self.seq += 1
        entry = {"type": kind, "group_id": "g", "incarnation": f"{REQUESTS}-0-0", "seq": self.seq}
        value = dumped({**entry, "at_ms": self.now_ms, **fields})
        self.events.append(Record(0, len(self.events), self.now_ms, b"g", value))
        return self

    def later(self, ms: int) -> Self:
        self.now_ms += ms
        return self

    def outage(self, after_ms: int, until_ms: int) -> Self:
        """Note an outage, from now on."""
        self.outages.append((self.now_ms + after_ms, self.now_ms + until_ms))
        return self

    def heartbeat(self, member: str = "m1", error: int = 0) -> Self:
        return self.ask("Heartbeat", {"error_code": error}, member_id=member, generation_id=1)

    def commit(self, offset: int, partition: int = 0, epoch: int = 1, error: int = 0) -> Self:
        """Append a commit of m1. One of partition 0 without an error is on the offsets topic, and known."""
        if partition == error == 0:
            self.acknowledge(offset).publish(offset, partition)
        answer, topics = done(partition, error), asked(partition, offset)
        return self.ask("OffsetCommit", answer, member_id="m1", generation_id=epoch, topics=topics)

    def acknowledge(self, offset: int) -> Self:
        """Note that a client saw this offset of partition 0 acknowledged."""
        self.acknowledged["g", 0] = offset
        return self

    def publish(self, offset: int, partition: int) -> Self:
        """Append a record of the offsets topic."""
        key, value = json.dumps(["g", TOPIC, partition]).encode(), dumped({"offset": offset})
        self.offsets.append(Record(0, len(self.offsets), self.now_ms, key, value))
        return self

    def fetch(self, offset: int, partition: int = 0, error: int = 0, **fields: Any) -> Self:
        """Append a fetch. `error` is its own, or with `require_stable` that of the partition."""
        is_stable = "require_stable" in fields
        found = {"partition_index": partition, "committed_offset": offset}
        found |= {"error_code": error} if is_stable else {}
        answer = {"error_code": 0 if is_stable else error, "topics": [{"name": TOPIC, "partitions": [found]}]}
        topics = [{"name": TOPIC, "partition_indexes": [partition]}]
        return self.ask("OffsetFetch", answer, topics=topics, **fields)

    def violations(self) -> set[StrEnum]:
        found = evidence(
            REQUESTS,
            requests=self.requests,
            responses=self.responses,
            events=self.events,
            offsets=self.offsets,
            outages=self.outages,
        )
        outcomes = Outcomes(self.committed, self.aborted)
        case = Case("c", TOPIC, self.outages, self.acknowledged, SESSION_MS, outcomes, SESSION_MS)
        return {verdict.violation for verdict in judge(found, case)}


def dumped(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def asked(partition: int, offset: int) -> list[dict[str, Any]]:
    """Return the topics of a commit."""
    return [{"name": TOPIC, "partitions": [{"partition_index": partition, "committed_offset": offset}]}]


def done(partition: int, error: int = 0) -> dict[str, Any]:
    """Return the answer to a commit."""
    return {"topics": [{"name": TOPIC, "partitions": [{"partition_index": partition, "error_code": error}]}]}
