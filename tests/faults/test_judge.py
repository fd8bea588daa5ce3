"""The judge of the campaign: it finds nothing in sound topics, and each wrong in doctored ones."""

import ast
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assignors.kafka.api import Assignment, TopicPartition
from assignors.kafka.consumer_protocol import encode_assignment
from tests.faults.campaign.judge import judging
from tests.faults.campaign.judge.verdicts import Wrong
from tests.faults.campaign.outages import in_force
from tests.faults.judged_topics import (
    REQUESTS,
    SESSION_MS,
    TOPIC,
    Topics,
    commit,
    fetch,
    heartbeat,
)

PACKAGES = {path.parent.name for path in Path(__file__).parents[2].glob("*/__init__.py")} - {"tests"}


def share(*partitions: int) -> str:
    assignment = Assignment(tuple(TopicPartition(TOPIC, partition) for partition in partitions))
    return base64.b64encode(encode_assignment(assignment)).decode()


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


def superseded(topics: Topics) -> str:
    request = topics.ask("JoinGroup", None, member_id="m1", session_timeout_ms=SESSION_MS)
    topics.event("RequestSuperseded", superseded=request)
    return request


def without_an_answer(topics: Topics) -> None:
    request = heartbeat(topics)
    topics.responses = [r for r in topics.responses if request.encode() not in (r.value or b"")]


def another_answer(topics: Topics) -> None:
    topics.answer(heartbeat(topics), {"type": "Heartbeat", "error_code": 27})


def an_answer_to_nothing(topics: Topics) -> None:
    topics.answer(f"{REQUESTS}-0-999", {"type": "Heartbeat"})


def another_early_answer(topics: Topics) -> None:
    topics.answer(heartbeat(topics), {"type": "Heartbeat", "error_code": 27}, "3.1")


def another_early_answer_behind_an_old_marker(topics: Topics) -> None:
    topics.mark("3.1")
    topics.mark("2.9")
    topics.answer(heartbeat(topics), {"type": "Heartbeat", "error_code": 27}, "3.1")


def an_early_answer_alone(topics: Topics) -> None:
    """The query has none, because the member has sent a newer request."""
    request = superseded(topics)
    topics.answer(request, {"type": "JoinGroup"}, "3.1")


def an_early_answer_to_nothing(topics: Topics) -> None:
    topics.answer(f"{REQUESTS}-0-999", {"type": "Heartbeat"}, "3.1")


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
        (another_early_answer, Wrong.DIFFERENT),
        (another_early_answer_behind_an_old_marker, Wrong.DIFFERENT),
        (an_early_answer_alone, Wrong.DIFFERENT),
        (an_early_answer_to_nothing, Wrong.DIFFERENT),
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


def answered_early(topics: Topics) -> None:
    """Before the query's answer, or behind it."""
    request = topics.ask("Heartbeat", None, member_id="m1", generation_id=1)
    topics.answer(request, {"type": "Heartbeat"}, "3.1")
    topics.answer(request, {"type": "Heartbeat"})
    topics.answer(request, {"type": "Heartbeat"}, "3.1")


def another_answer_of_a_replaced_replica(topics: Topics) -> None:
    topics.mark("4.0")
    for replica in ("3.1", "3.10"):
        topics.answer(heartbeat(topics), {"type": "Heartbeat", "error_code": 27}, replica)


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


@pytest.mark.parametrize(
    "doctor",
    [
        superseded,
        answered_early,
        another_answer_of_a_replaced_replica,
        answered_twice_alike,
        pending_id_expired_after_an_outage,
        lock_after_the_lifetime,
        lock_after_the_unlock,
        expired_when_time_was_over,
    ],
)
def test_what_is_allowed_is_no_wrong(doctor: Callable[[Topics], object]) -> None:
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


def test_an_outage_that_a_lost_owner_wrote_for_itself_is_none() -> None:
    """The newest owner's record decides from its first outage on. What is older than all of its own stays."""
    assert in_force({(1, 2), (5, 6)}, {(5, 6), (8, 9)}) == {(1, 2), (5, 6), (8, 9)}
    assert in_force({(5, 6), (11, 13)}, {(5, 6), (10, 12)}) == {(5, 6), (10, 12)}
    assert in_force({(1, 2)}, ()) == {(1, 2)}
