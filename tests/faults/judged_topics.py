"""Topics by hand, for the tests of the campaign's judge."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.faults.campaign.judge.judging import Case, judge
from tests.faults.campaign.judge.topics import Record, evidence
from tests.faults.campaign.judge.transactions import Outcomes
from tests.faults.campaign.judge.verdicts import Wrong

TOPIC = "orders"
REQUESTS = "c-requests"
SESSION_MS = 10_000
START_MS = 1_000_000


@dataclass
class Topics:
    """Topics by hand: one request a second, each with its answer."""

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

    def ask(self, kind: str, answer: dict[str, Any] | None, group: str = "g", **fields: Any) -> str:
        """A request, a second after the last one, and its answer. Returns its id."""
        self.now_ms += 1_000
        offset = len(self.requests)
        request_id = f"{REQUESTS}-0-{offset}"
        body = {"type": kind, "group_id": group, **fields}
        self.requests.append(Record(0, offset, self.now_ms, group.encode(), dumped(body)))
        if answer is not None:
            self.answer(request_id, {"type": kind, **answer})
        return request_id

    def answer(self, request_id: str, answer: dict[str, Any], replica: str | None = None) -> None:
        """An answer of the query, or an early one of this replica."""
        value = dumped({"request": request_id, "error_code": 0, **answer})
        headers = [] if replica is None else [("early", f"{replica} {self.now_ms}".encode())]
        self.responses.append(Record(0, len(self.responses), self.now_ms, None, value, headers))

    def mark(self, first: str) -> None:
        """A marker: replicas before this one are replaced."""
        headers = [("replicas-since", first.encode())]
        self.responses.append(Record(0, len(self.responses), self.now_ms, None, None, headers))

    def event(self, kind: str, **fields: Any) -> None:
        self.seq += 1
        entry = {"type": kind, "group_id": "g", "incarnation": f"{REQUESTS}-0-0", "seq": self.seq}
        value = dumped({**entry, "at_ms": self.now_ms, **fields})
        self.events.append(Record(0, len(self.events), self.now_ms, b"g", value))

    def wrongs(self) -> set[Wrong]:
        found = evidence(
            REQUESTS,
            requests=self.requests,
            responses=self.responses,
            events=self.events,
            dead_letters=[],
            offsets=self.offsets,
            outages=self.outages,
        )
        outcomes = Outcomes(self.committed, self.aborted)
        case = Case("c", TOPIC, self.outages, self.acknowledged, SESSION_MS, outcomes, SESSION_MS)
        return {verdict.wrong for verdict in judge(found, case)}


def dumped(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def heartbeat(topics: Topics, member: str = "m1", error: int = 0) -> str:
    return topics.ask("Heartbeat", {"error_code": error}, member_id=member, generation_id=1)


def asked(partition: int, offset: int) -> list[dict[str, Any]]:
    """The topics of a commit."""
    return [{"name": TOPIC, "partitions": [{"partition_index": partition, "committed_offset": offset}]}]


def done(partition: int, error: int = 0) -> dict[str, Any]:
    """Its answer."""
    return {"topics": [{"name": TOPIC, "partitions": [{"partition_index": partition, "error_code": error}]}]}


def store(topics: Topics, offset: int) -> None:
    """An acknowledged commit is on the offsets topic, and its client knows."""
    key = json.dumps(["g", TOPIC, 0]).encode()
    topics.offsets.append(Record(0, len(topics.offsets), topics.now_ms, key, dumped({"offset": offset})))
    topics.acknowledged["g", 0] = offset


def commit(topics: Topics, offset: int) -> str:
    store(topics, offset)
    return topics.ask("OffsetCommit", done(0), member_id="m1", generation_id=1, topics=asked(0, offset))


def fetch(topics: Topics, offset: int) -> str:
    asked = [{"name": TOPIC, "partition_indexes": [0]}]
    found = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    return topics.ask("OffsetFetch", {"topics": found}, topics=asked)
