"""The judge of the campaign: it finds nothing in correct topics, and each planted error in doctored ones."""

import ast
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from tests.campaigns import reading, verdict
from tests.campaigns.stage import in_force
from tests.faults.campaign.judge import judging
from tests.faults.campaign.judge.verdicts import Violation
from tests.faults.judged_topics import REQUESTS, SESSION_MS, TOPIC, Topics

PACKAGES = {path.parent.name for path in Path(__file__).parents[2].glob("*/__init__.py")} - {"tests"}
QUEUES = [[TOPIC, "broker", 0]]
SILENT = "no heartbeat within its session timeout of 10000 ms"
UNJOINED = "did not join with the id it was given"


def share(*partitions: int) -> str:
    assignment = Assignment(tuple(TopicPartition(TOPIC, partition) for partition in partitions))
    return base64.b64encode(encode_assignment(assignment)).decode()


class Group(Topics):
    """Requests to a classic group, and to one of RocketMQ's."""

    def join(self, member: str, leader: str = "m1") -> Self:
        answer = {"member_id": member, "generation_id": 1, "leader": leader}
        return self.ask("JoinGroup", answer, member_id=member, session_timeout_ms=SESSION_MS)

    def sync(self, member: str, mine: str, dealt: dict[str, str] | None = None) -> Self:
        assignments = [{"member_id": one, "assignment": part} for one, part in (dealt or {}).items()]
        answer = {"assignment": mine}
        return self.ask("SyncGroup", answer, member_id=member, generation_id=1, assignments=assignments)

    def removed(self, member: str, reason: str = SILENT, kind: str = "MemberRemoved") -> Self:
        return self.event(kind, member_id=member, reason=reason)

    def give_id(self) -> Self:
        """Give a new member the id m9."""
        answer = {"error_code": 79, "member_id": "m9"}
        self.ask("JoinGroup", answer, member_id="", session_timeout_ms=SESSION_MS)
        return self.event("MemberIdAssigned", member_id="m9")

    def superseded(self) -> Self:
        self.ask("JoinGroup", None, member_id="m1", session_timeout_ms=SESSION_MS)
        return self.event("RequestSuperseded", superseded=self.request_id)

    def lock(self, client: str) -> Self:
        answer = {"code": 0, "lock_ok_mq_set": QUEUES}
        return self.ask("LOCK_BATCH_MQ", answer, "r", client_id=client, mq_set=QUEUES)

    def unlock(self, client: str) -> Self:
        return self.ask("UNLOCK_BATCH_MQ", {"code": 0}, "r", client_id=client, mq_set=QUEUES)

    def answer_nothing(self, replica: str | None = None) -> Self:
        """Answer a request that is not in the log."""
        self.kind, self.request_id = "Heartbeat", f"{REQUESTS}-0-999"
        return self.answer(replica)


def sound() -> Group:
    """Two members share two partitions, heartbeat and commit. One of them falls silent and expires."""
    dealt = {"m1": share(0), "m2": share(1)}
    group = Group().event("GroupCreated").join("m1").join("m2").event("CompletingRebalance", generation=1)
    group.sync("m1", dealt["m1"], dealt).event("Stable", generation=1).sync("m2", dealt["m2"])
    for offset in range(12):
        group.heartbeat().commit(offset).fetch(offset)
    return group.removed("m2").heartbeat(error=27).heartbeat("m2", error=25)


Doctor = Callable[[Group], Topics]
DOCTORED: dict[str, tuple[Violation, Doctor]] = {
    "request without an answer": (Violation.LOST, lambda it: it.ask("Heartbeat", None, member_id="m1")),
    "entry that is missing": (Violation.LOST, lambda it: it.event("Stable", seq=it.seq + 2)),
    "another answer": (Violation.DIFFERENT, lambda it: it.heartbeat().answer(error_code=27)),
    "answer to nothing": (Violation.DIFFERENT, lambda it: it.answer_nothing()),
    "another early answer": (Violation.DIFFERENT, lambda it: it.heartbeat().answer("3.1", error_code=27)),
    "another early answer behind an old marker": (
        Violation.DIFFERENT,
        lambda it: it.mark("3.1").mark("2.9").heartbeat().answer("3.1", error_code=27),
    ),
    # The query has none, because the member has sent a newer request.
    "early answer alone": (Violation.DIFFERENT, lambda it: it.superseded().answer("3.1")),
    "early answer to nothing": (Violation.DIFFERENT, lambda it: it.answer_nothing("3.1")),
    "another entry": (Violation.DIFFERENT, lambda it: it.event("Stable", seq=it.seq, reason="written again")),
    "expired in spite of a heartbeat": (Violation.EXPIRED, lambda it: it.removed("m1")),
    # The heartbeat stands before the removal in the log, and was handled after it.
    "expired in spite of a heartbeat that is then refused": (
        Violation.EXPIRED,
        lambda it: it.heartbeat(error=25).later(1_000).removed("m1"),
    ),
    "expired because of an outage": (
        Violation.EXPIRED,
        lambda it: it.outage(1, 60_000).later(65_000).removed("m1"),
    ),
    # The outage does not count.
    "pending id expired early": (
        Violation.EXPIRED,
        lambda it: (
            it.give_id()
            .outage(1_000, 61_000)
            .later(65_000)
            .removed("m9", UNJOINED, kind="PendingMemberRemoved")
        ),
    ),
    "expired although it rejoined": (
        Violation.EXPIRED,
        lambda it: (
            it.event("PreparingRebalance")
            .join("m1")
            .later(60_000)
            .removed("m1", "did not rejoin within the rebalance timeout")
        ),
    ),
    "forgotten": (Violation.EXPIRED, lambda it: it.heartbeat(error=25)),
    "silent connection that sent a heartbeat": (
        Violation.EXPIRED,
        lambda it: (
            it.ask("HEART_BEAT_CONSUMER", {"code": 0}, "g", connection="c1")
            .later(5_000)
            .event("ConsumerRemoved", connection="c1", cause="scan at 1")
        ),
    ),
    "offset rolled back": (Violation.OFFSET, lambda it: it.fetch(3)),
    "offset rolled back on the topic": (Violation.OFFSET, lambda it: it.publish(0, 0)),
    "commit that is acknowledged and in no log": (Violation.OFFSET, lambda it: it.acknowledge(77)),
    "partition of two": (
        Violation.OWNERS,
        lambda it: it.sync("m1", share(0), {"m3": share(1)}).sync("m3", share(1)),
    ),
    "assignment that no leader gave": (Violation.OWNERS, lambda it: it.sync("m2", share(5))),
    "two leaders": (Violation.OWNERS, lambda it: it.join("m3", leader="m3")),
    "queue of two": (Violation.OWNERS, lambda it: it.lock("A").lock("B")),
}
ALLOWED: dict[str, Doctor] = {
    "nothing more": lambda it: it,
    "superseded": lambda it: it.superseded(),
    "answered early, before the query's answer and behind it": lambda it: (
        it.ask("Heartbeat", None, member_id="m1").answer("3.1").answer().answer("3.1")
    ),
    "another answer of a replaced replica": lambda it: (
        it.mark("4.0").heartbeat().answer("3.1", error_code=27).heartbeat().answer("3.10", error_code=27)
    ),
    "answered twice alike": lambda it: it.heartbeat().answer(),
    # It has as much time left as before the outage: 9 s.
    "pending id expired after an outage": lambda it: (
        it.give_id()
        .outage(1_000, 61_000)
        .later(61_000 + 9_000)
        .removed("m9", UNJOINED, kind="PendingMemberRemoved")
    ),
    "lock after the lifetime": lambda it: it.lock("A").later(61_000).lock("B"),
    "lock after the unlock": lambda it: it.lock("A").unlock("A").lock("B"),
    "expired when time was over": lambda it: (
        it.heartbeat().later(SESSION_MS).removed("m1").heartbeat(error=25)
    ),
}


@pytest.mark.parametrize(("wrong", "doctor"), DOCTORED.values(), ids=DOCTORED)
def test_judge_finds_the_planted_error_in_doctored_topics(wrong: Violation, doctor: Doctor) -> None:
    assert doctor(sound()).violations() == {wrong}


@pytest.mark.parametrize("doctor", ALLOWED.values(), ids=ALLOWED)
def test_allowed_deviation_passes_the_judge(doctor: Doctor) -> None:
    assert doctor(sound()).violations() == set()


def test_judge_does_not_import_the_code_it_judges() -> None:
    """Neither does it import modules that import this project's packages."""
    assert "state" in PACKAGES
    own: Any = (reading, verdict)
    for path in [*Path(judging.__file__).parent.glob("*.py"), *(Path(it.__file__) for it in own)]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = {name for name in names if name.split(".")[0] in {*PACKAGES, "tests"}}
            of_judge = {name for name in foreign if name.startswith("tests.faults.campaign.judge.")}
            assert foreign - of_judge <= {it.__name__ for it in own}, path.name


def test_outage_written_only_by_a_deposed_owner_does_not_count() -> None:
    """The newest owner's record replaces everything from its first outage on. Older outages stay."""
    assert in_force({(1, 2), (5, 6)}, {(5, 6), (8, 9)}) == {(1, 2), (5, 6), (8, 9)}
    assert in_force({(5, 6), (11, 13)}, {(5, 6), (10, 12)}) == {(5, 6), (10, 12)}
    assert in_force({(1, 2)}, ()) == {(1, 2)}
