"""The judge of the campaign: it finds nothing in sound topics, and each wrong in doctored ones."""

import ast
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assignors.kafka.api import Assignment, TopicPartition
from assignors.kafka.consumer_protocol import encode_assignment
from tests.faults.campaign.judge import judging
from tests.faults.campaign.judge.judging import Case, judge
from tests.faults.campaign.judge.topics import Record, evidence
from tests.faults.campaign.judge.transactions import Outcomes
from tests.faults.campaign.judge.verdicts import Wrong

TOPIC = "orders"
REQUESTS = "c-requests"
SESSION_MS = 10_000
START_MS = 1_000_000
PACKAGES = {path.parent.name for path in Path(__file__).parents[2].glob("*/__init__.py")} - {"tests"}


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

    def answer(self, request_id: str, answer: dict[str, Any]) -> None:
        value = dumped({"request": request_id, "error_code": 0, **answer})
        self.responses.append(Record(0, len(self.responses), self.now_ms, None, value))

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
        case = Case("c", TOPIC, self.outages, self.acknowledged, SESSION_MS, outcomes)
        return {verdict.wrong for verdict in judge(found, case)}


def dumped(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def share(*partitions: int) -> str:
    assignment = Assignment(tuple(TopicPartition(TOPIC, partition) for partition in partitions))
    return base64.b64encode(encode_assignment(assignment)).decode()


def heartbeat(topics: Topics, member: str = "m1", error: int = 0) -> str:
    return topics.ask("Heartbeat", {"error_code": error}, member_id=member, generation_id=1)


def asked(partition: int, offset: int) -> list[dict[str, Any]]:
    """The topics of a commit."""
    return [{"name": TOPIC, "partitions": [{"partition_index": partition, "committed_offset": offset}]}]


def done(partition: int) -> dict[str, Any]:
    """Its answer."""
    return {"topics": [{"name": TOPIC, "partitions": [{"partition_index": partition, "error_code": 0}]}]}


def commit(topics: Topics, offset: int) -> str:
    key = json.dumps(["g", TOPIC, 0]).encode()
    topics.offsets.append(Record(0, len(topics.offsets), topics.now_ms, key, dumped({"offset": offset})))
    topics.acknowledged["g", 0] = offset
    return topics.ask("OffsetCommit", done(0), member_id="m1", generation_id=1, topics=asked(0, offset))


def fetch(topics: Topics, offset: int) -> str:
    asked = [{"name": TOPIC, "partition_indexes": [0]}]
    found = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    return topics.ask("OffsetFetch", {"topics": found}, topics=asked)


def hold(topics: Topics, offset: int, position: int, **fields: Any) -> str:
    """Offset of partition 1 in a transaction of producer 7, epoch 3, of the older kind (TV1)."""
    body = {"producer_id": 7, "producer_epoch": 3, "txn_partition": 0, "txn_position": position, **fields}
    return topics.ask("TxnOffsetCommit", done(1), topics=asked(1, offset), **body)


def mark(
    topics: Topics, position: int, *, committed: bool = True, first: int | None = None, epoch: int = 3
) -> str:
    """A marker of producer 7."""
    body = {"producer_id": 7, "producer_epoch": epoch, "txn_partition": 0, "txn_position": position}
    first = position if first is None else first
    return topics.ask("TransactionMarker", {}, **body, first_position=first, committed=committed)


def fetch_stable(topics: Topics, offset: int, error: int = 0) -> str:
    """Partition 1."""
    asked = [{"name": TOPIC, "partition_indexes": [1]}]
    partition = {"partition_index": 1, "committed_offset": offset, "error_code": error}
    return topics.ask(
        "OffsetFetch",
        {"topics": [{"name": TOPIC, "partitions": [partition]}]},
        topics=asked,
        require_stable=True,
    )


def publish(topics: Topics, offset: int) -> None:
    """A record of partition 1 on the offsets topic."""
    key = json.dumps(["g", TOPIC, 1]).encode()
    topics.offsets.append(Record(0, len(topics.offsets), topics.now_ms, key, dumped({"offset": offset})))


def sync(topics: Topics, member: str, mine: str, dealt: dict[str, str] | None = None) -> str:
    assignments = [{"member_id": one, "assignment": part} for one, part in (dealt or {}).items()]
    return topics.ask(
        "SyncGroup", {"assignment": mine}, member_id=member, generation_id=1, assignments=assignments
    )


def join(topics: Topics, member: str, leader: str = "m1") -> str:
    answer = {"member_id": member, "generation_id": 1, "leader": leader}
    return topics.ask("JoinGroup", answer, member_id=member, session_timeout_ms=SESSION_MS)


def sound() -> Topics:
    """Two members share two partitions, heartbeat, commit, and one of them falls silent and expires."""
    topics = Topics()
    topics.event("GroupCreated")
    join(topics, "m1")
    join(topics, "m2")
    topics.event("CompletingRebalance", generation=1)
    dealt = {"m1": share(0), "m2": share(1)}
    sync(topics, "m1", dealt["m1"], dealt)
    topics.event("Stable", generation=1)
    sync(topics, "m2", dealt["m2"])
    for offset in range(12):
        heartbeat(topics)
        commit(topics, offset)
        fetch(topics, offset)
    topics.event(
        "MemberRemoved", member_id="m2", reason="no heartbeat within its session timeout of 10000 ms"
    )
    heartbeat(topics, error=27)
    heartbeat(topics, "m2", error=25)
    return topics


def lock(topics: Topics, client: str, **answer: Any) -> str:
    queues = [[TOPIC, "broker", 0]]
    return topics.ask(
        "LOCK_BATCH_MQ", {"code": 0, "lock_ok_mq_set": queues, **answer}, "r", client_id=client, mq_set=queues
    )


def test_sound_topics_are_without_a_wrong() -> None:
    assert sound().wrongs() == set()


def without_an_answer(topics: Topics) -> None:
    request = heartbeat(topics)
    topics.responses = [r for r in topics.responses if request.encode() not in (r.value or b"")]


def another_answer(topics: Topics) -> None:
    topics.answer(heartbeat(topics), {"type": "Heartbeat", "error_code": 27})


def an_answer_to_nothing(topics: Topics) -> None:
    topics.answer(f"{REQUESTS}-0-999", {"type": "Heartbeat"})


def another_entry(topics: Topics) -> None:
    topics.seq -= 1
    topics.event("Stable", reason="written differently")


def without_an_entry(topics: Topics) -> None:
    topics.seq += 1
    topics.event("Stable")


def expired_in_spite_of_a_heartbeat(topics: Topics) -> None:
    topics.event("MemberRemoved", member_id="m1", reason="no heartbeat within its session timeout")


def expired_in_spite_of_a_heartbeat_that_is_then_refused(topics: Topics) -> None:
    """The heartbeat stands before the removal in the log, and was handled after it."""
    heartbeat(topics, error=25)
    topics.now_ms += 1_000
    topics.event("MemberRemoved", member_id="m1", reason="no heartbeat within its session timeout")


def expired_because_of_an_outage(topics: Topics) -> None:
    topics.outages.append((topics.now_ms + 1, topics.now_ms + 60_000))
    topics.now_ms += 65_000
    topics.event("MemberRemoved", member_id="m1", reason="no heartbeat within its session timeout")


def pending_id_expired_early(topics: Topics) -> None:
    """The outage does not count."""
    give_id(topics, "m9")
    topics.outages.append((topics.now_ms + 1_000, topics.now_ms + 61_000))
    topics.now_ms += 65_000
    topics.event("PendingMemberRemoved", member_id="m9", reason="did not join with the id it was given")


def give_id(topics: Topics, member: str) -> None:
    answer = {"error_code": 79, "member_id": member}
    topics.ask("JoinGroup", answer, member_id="", session_timeout_ms=SESSION_MS)
    topics.event("MemberIdAssigned", member_id=member)


def expired_although_it_rejoined(topics: Topics) -> None:
    topics.event("PreparingRebalance")
    join(topics, "m1")
    topics.now_ms += 60_000
    topics.event("MemberRemoved", member_id="m1", reason="did not rejoin within the rebalance timeout")


def forgotten(topics: Topics) -> None:
    heartbeat(topics, "m1", error=25)


def offset_rolled_back(topics: Topics) -> None:
    fetch(topics, 3)


def offset_rolled_back_on_the_topic(topics: Topics) -> None:
    topics.offsets.append(topics.offsets[0])


def acknowledged_and_in_no_log(topics: Topics) -> None:
    topics.acknowledged["g", 0] = 77


def pending_taken_for_stable(topics: Topics) -> None:
    hold(topics, 50, position=4)
    fetch_stable(topics, -1)


def committed_and_dropped(topics: Topics) -> None:
    """The client saw the transaction committed."""
    hold(topics, 50, position=4)
    mark(topics, 4, committed=False)
    topics.committed.append(("g", 1, 50))


def aborted_and_committed(topics: Topics) -> None:
    hold(topics, 50, position=4)
    mark(topics, 4)
    publish(topics, 50)
    topics.aborted.append(("g", 1, 50))


def aborted_and_fetched(topics: Topics) -> None:
    hold(topics, 50, position=4)
    mark(topics, 4, committed=False)
    fetch_stable(topics, 50)


def committed_by_the_marker_of_the_next_one(topics: Topics) -> None:
    """The first transaction's marker aborts at 4, and the second one's commits at 5."""
    hold(topics, 50, position=4)
    hold(topics, 60, position=5)
    mark(topics, 5)
    mark(topics, 4, committed=False)
    fetch_stable(topics, 50)
    publish(topics, 50)


def fenced_and_committed(topics: Topics) -> None:
    """Its end was an abort with the next epoch; the record says COMMIT."""
    hold(topics, 50, position=4)
    mark(topics, 4, epoch=4)
    fetch_stable(topics, 50)


def older_one_moved_over_a_plain_commit(topics: Topics) -> None:
    """Behind the one that waits stands a commit of the same partition."""
    hold(topics, 50, position=4)
    topics.ask("OffsetCommit", done(1), member_id="m1", generation_id=1, topics=asked(1, 60))
    mark(topics, 4)
    fetch_stable(topics, 50)
    publish(topics, 50)


def partition_of_two(topics: Topics) -> None:
    sync(topics, "m1", share(0), {"m3": share(1)})
    sync(topics, "m3", share(1))


def assignment_that_no_leader_gave(topics: Topics) -> None:
    sync(topics, "m2", share(5))


def two_leaders(topics: Topics) -> None:
    join(topics, "m3", leader="m3")


def queue_of_two(topics: Topics) -> None:
    lock(topics, "A")
    lock(topics, "B")


def silent_connection_that_sent_a_heartbeat(topics: Topics) -> None:
    topics.ask("HEART_BEAT_CONSUMER", {"code": 0}, "g", connection="c1")
    topics.now_ms += 5_000
    topics.event("ConsumerRemoved", connection="c1", cause="scan at 1")


@pytest.mark.parametrize(
    ("doctor", "wrong"),
    [
        (without_an_answer, Wrong.LOST),
        (without_an_entry, Wrong.LOST),
        (another_answer, Wrong.DIFFERENT),
        (an_answer_to_nothing, Wrong.DIFFERENT),
        (another_entry, Wrong.DIFFERENT),
        (expired_in_spite_of_a_heartbeat, Wrong.EXPIRED),
        (expired_in_spite_of_a_heartbeat_that_is_then_refused, Wrong.EXPIRED),
        (expired_because_of_an_outage, Wrong.EXPIRED),
        (pending_id_expired_early, Wrong.EXPIRED),
        (expired_although_it_rejoined, Wrong.EXPIRED),
        (forgotten, Wrong.EXPIRED),
        (silent_connection_that_sent_a_heartbeat, Wrong.EXPIRED),
        (offset_rolled_back, Wrong.OFFSET),
        (offset_rolled_back_on_the_topic, Wrong.OFFSET),
        (acknowledged_and_in_no_log, Wrong.OFFSET),
        (pending_taken_for_stable, Wrong.OFFSET),
        (committed_and_dropped, Wrong.OFFSET),
        (aborted_and_committed, Wrong.OFFSET),
        (aborted_and_fetched, Wrong.OFFSET),
        (committed_by_the_marker_of_the_next_one, Wrong.OFFSET),
        (fenced_and_committed, Wrong.OFFSET),
        (older_one_moved_over_a_plain_commit, Wrong.OFFSET),
        (partition_of_two, Wrong.OWNERS),
        (assignment_that_no_leader_gave, Wrong.OWNERS),
        (two_leaders, Wrong.OWNERS),
        (queue_of_two, Wrong.OWNERS),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_doctored_topics_show_the_wrong(doctor: Callable[[Topics], None], wrong: Wrong) -> None:
    topics = sound()
    doctor(topics)
    assert topics.wrongs() == {wrong}


def superseded(topics: Topics) -> None:
    request = topics.ask("JoinGroup", None, member_id="m1", session_timeout_ms=SESSION_MS)
    topics.event("RequestSuperseded", superseded=request)


def answered_twice_alike(topics: Topics) -> None:
    request = heartbeat(topics)
    topics.answer(request, {"type": "Heartbeat"})


def pending_id_expired_after_an_outage(topics: Topics) -> None:
    """It has as much time left as before the outage: 9 s."""
    give_id(topics, "m9")
    topics.outages.append((topics.now_ms + 1_000, topics.now_ms + 61_000))
    topics.now_ms += 61_000 + 9_000
    topics.event("PendingMemberRemoved", member_id="m9", reason="did not join with the id it was given")


def lock_after_the_lifetime(topics: Topics) -> None:
    lock(topics, "A")
    topics.now_ms += 61_000
    lock(topics, "B")


def lock_after_the_unlock(topics: Topics) -> None:
    lock(topics, "A")
    topics.ask("UNLOCK_BATCH_MQ", {"code": 0}, "r", client_id="A", mq_set=[[TOPIC, "broker", 0]])
    lock(topics, "B")


def expired_when_time_was_over(topics: Topics) -> None:
    heartbeat(topics)
    topics.now_ms += SESSION_MS
    topics.event("MemberRemoved", member_id="m1", reason="no heartbeat within its session timeout")
    heartbeat(topics, error=25)


def transaction_committed(topics: Topics) -> None:
    hold(topics, 50, position=4)
    fetch_stable(topics, -1, error=88)
    fetch(topics, 11)
    mark(topics, 4)
    fetch_stable(topics, 50)
    publish(topics, 50)
    topics.committed.append(("g", 1, 50))


def transaction_committed_with_an_epoch_of_its_own(topics: Topics) -> None:
    hold(topics, 50, position=4, txn_version=2)
    mark(topics, 6, first=4, epoch=3)  # an old copy of the marker before
    fetch_stable(topics, -1, error=88)
    mark(topics, 7, first=4, epoch=4)
    fetch_stable(topics, 50)
    publish(topics, 50)


def transaction_aborted(topics: Topics) -> None:
    hold(topics, 50, position=4)
    mark(topics, 4, committed=False)
    fetch_stable(topics, -1)
    topics.aborted.append(("g", 1, 50))


def asked_again_after_the_gateway_ended(topics: Topics) -> None:
    """Two are pending with the same offset, and both are decided."""
    hold(topics, 50, position=4)
    hold(topics, 50, position=4)
    mark(topics, 4)
    mark(topics, 4)
    fetch_stable(topics, 50)
    publish(topics, 50)
    topics.committed.append(("g", 1, 50))


@pytest.mark.parametrize(
    "doctor",
    [
        transaction_committed,
        transaction_committed_with_an_epoch_of_its_own,
        transaction_aborted,
        asked_again_after_the_gateway_ended,
        superseded,
        answered_twice_alike,
        pending_id_expired_after_an_outage,
        lock_after_the_lifetime,
        lock_after_the_unlock,
        expired_when_time_was_over,
    ],
)
def test_what_is_allowed_is_no_wrong(doctor: Callable[[Topics], None]) -> None:
    topics = sound()
    doctor(topics)
    assert topics.wrongs() == set()


def test_judge_imports_nothing_of_what_it_judges() -> None:
    """Neither the packages of this project nor what imports them."""
    assert "state" in PACKAGES
    folder = Path(judging.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in PACKAGES, (path.name, name)
                is_foreign = name.startswith("tests.") and not name.startswith("tests.faults.campaign.judge.")
                assert not is_foreign, (path.name, name)
