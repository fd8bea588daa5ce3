"""The judge on groups of the consumer protocol: nothing in sound topics, and each wrong in doctored ones."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.faults.campaign.judge.verdicts import Wrong
from tests.faults.judged_topics import SESSION_MS, TOPIC, Topics, asked, done, store

ORDERS = str(UUID(int=1))
HEARTBEAT = "ConsumerGroupHeartbeat"
SILENT = "no heartbeat within the session timeout of 10000 ms"
UNREVOKED = "did not revoke its partitions within its rebalance timeout of 60000 ms"


def shares(*partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": ORDERS, "partitions": [*partitions]}] if partitions else []


def beat(topics: Topics, member: str, epoch: int, to: int | None = None, **more: Any) -> str:
    """A heartbeat with `epoch`, answered with the epoch `to`. `given` are the partitions of the answer."""
    answer = {
        "member_id": member,
        "member_epoch": epoch if to is None else to,
        "heartbeat_interval_ms": 5_000,
    }
    answer["assignment"] = shares(*more.pop("given")) if "given" in more else None
    if "owned" in more:
        more["topic_partitions"] = shares(*more.pop("owned"))
    return topics.ask(HEARTBEAT, answer, member_id=member, member_epoch=epoch, **more)


def refused(topics: Topics, error: int, member: str, epoch: int, **more: Any) -> str:
    if "owned" in more:
        more["topic_partitions"] = shares(*more.pop("owned"))
    answer = {"error_code": error, "error_message": "no", "member_id": None, "assignment": None}
    return topics.ask(HEARTBEAT, answer, member_id=member, member_epoch=epoch, **more)


def removed(topics: Topics, member: str, reason: str = SILENT) -> None:
    topics.event("MemberRemoved", member_id=member, reason=reason, group_type="consumer")


def commit(topics: Topics, offset: int, epoch: int, error: int = 0) -> None:
    if not error:
        store(topics, offset)
    topics.ask("OffsetCommit", done(0, error), member_id="m1", generation_id=epoch, topics=asked(0, offset))


def fetch(topics: Topics, offset: int, epoch: int, error: int = 0) -> None:
    found = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    topics.ask(
        "OffsetFetch",
        {"error_code": error, "topics": found},
        member_id="m1",
        member_epoch=epoch,
        topics=[{"name": TOPIC, "partition_indexes": [0]}],
    )


def sound() -> Topics:
    """m1 has both partitions, and gives one up for m2. A static member joins and falls silent."""
    topics = Topics()
    topics.event("GroupCreated", group_type="consumer")
    beat(topics, "m1", 0, 1, given=[0, 1], owned=[], rebalance_timeout_ms=60_000)
    commit(topics, 5, 1)
    beat(topics, "m2", 0, 2, given=[], owned=[], rebalance_timeout_ms=60_000)
    beat(topics, "m1", 1, 1, given=[0])
    commit(topics, 6, 1)
    beat(topics, "m1", 1, 2, owned=[0])
    beat(topics, "m2", 2, 2, given=[1])
    beat(topics, "s1", 0, 2, given=[], owned=[], instance_id="i")
    for offset in range(7, 12):
        beat(topics, "m1", 2)
        beat(topics, "m2", 2)
        commit(topics, offset, 2)
        fetch(topics, offset, 2)
    removed(topics, "s1")
    return topics


def test_sound_topics_are_without_a_wrong() -> None:
    assert sound().wrongs() == set()


def without_an_answer(topics: Topics) -> None:
    request = beat(topics, "m1", 2)
    topics.responses = [r for r in topics.responses if request.encode() not in (r.value or b"")]


def another_answer(topics: Topics) -> None:
    topics.answer(beat(topics, "m1", 2), {"type": HEARTBEAT, "error_code": 27})


def expired_in_spite_of_a_heartbeat(topics: Topics) -> None:
    beat(topics, "m1", 2)
    topics.now_ms += SESSION_MS - 1
    removed(topics, "m1")


def expired_in_spite_of_a_heartbeat_that_is_then_refused(topics: Topics) -> None:
    refused(topics, 25, "m1", 2)
    topics.now_ms += SESSION_MS - 1
    removed(topics, "m1")


def expired_because_of_an_outage(topics: Topics) -> None:
    topics.outages.append((topics.now_ms + 1, topics.now_ms + 60_000))
    topics.now_ms += 65_000
    removed(topics, "m1")


def removed_with_nothing_to_revoke(topics: Topics) -> None:
    removed(topics, "m1", UNREVOKED)


def removed_with_time_left_to_revoke(topics: Topics) -> None:
    beat(topics, "m1", 2, given=[])
    topics.now_ms += 59_000
    removed(topics, "m1", UNREVOKED)


def forgotten(topics: Topics) -> None:
    refused(topics, 25, "m1", 2)


def fenced_with_its_epoch(topics: Topics) -> None:
    refused(topics, 110, "m1", 2)


def fenced_after_a_lost_answer(topics: Topics) -> None:
    beat(topics, "m1", 2, 3)
    refused(topics, 110, "m1", 2, owned=[0])


def commit_with_its_epoch_refused(topics: Topics) -> None:
    commit(topics, 12, 2, error=113)


def fetch_with_its_epoch_refused(topics: Topics) -> None:
    fetch(topics, -1, 2, error=113)


def instance_id_of_nobody_else(topics: Topics) -> None:
    beat(topics, "s2", 0, 2, given=[], owned=[], instance_id="i")
    refused(topics, 82, "s2", 2, instance_id="i")


def offset_rolled_back(topics: Topics) -> None:
    fetch(topics, 3, 2)


def acknowledged_and_in_no_log(topics: Topics) -> None:
    topics.acknowledged["g", 0] = 77


def partition_of_two(topics: Topics) -> None:
    beat(topics, "m2", 2, 3, given=[0, 1])


def partition_that_is_not_given_up_yet(topics: Topics) -> None:
    beat(topics, "m1", 2, given=[])
    beat(topics, "m2", 2, 3, given=[0, 1])


def partitions_of_a_static_member_that_is_there(topics: Topics) -> None:
    beat(topics, "s2", 0, 2, given=[2], owned=[], instance_id="i")
    beat(topics, "s3", 0, 2, given=[2], owned=[], instance_id="i")


@pytest.mark.parametrize(
    ("doctor", "wrong"),
    [
        (without_an_answer, Wrong.LOST),
        (another_answer, Wrong.DIFFERENT),
        (expired_in_spite_of_a_heartbeat, Wrong.EXPIRED),
        (expired_in_spite_of_a_heartbeat_that_is_then_refused, Wrong.EXPIRED),
        (expired_because_of_an_outage, Wrong.EXPIRED),
        (removed_with_nothing_to_revoke, Wrong.EXPIRED),
        (removed_with_time_left_to_revoke, Wrong.EXPIRED),
        (forgotten, Wrong.EXPIRED),
        (fenced_with_its_epoch, Wrong.EXPIRED),
        (fenced_after_a_lost_answer, Wrong.EXPIRED),
        (commit_with_its_epoch_refused, Wrong.EXPIRED),
        (fetch_with_its_epoch_refused, Wrong.EXPIRED),
        (instance_id_of_nobody_else, Wrong.EXPIRED),
        (offset_rolled_back, Wrong.OFFSET),
        (acknowledged_and_in_no_log, Wrong.OFFSET),
        (partition_of_two, Wrong.OWNERS),
        (partition_that_is_not_given_up_yet, Wrong.OWNERS),
        (partitions_of_a_static_member_that_is_there, Wrong.OWNERS),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_doctored_topics_show_the_wrong(doctor: Callable[[Topics], None], wrong: Wrong) -> None:
    topics = sound()
    doctor(topics)
    assert topics.wrongs() == {wrong}


def expired_when_time_was_over(topics: Topics) -> None:
    beat(topics, "m1", 2)
    topics.now_ms += SESSION_MS
    removed(topics, "m1")
    refused(topics, 25, "m1", 2)
    beat(topics, "m2", 2, 3, given=[0, 1])


def removed_when_the_time_to_revoke_was_over(topics: Topics) -> None:
    beat(topics, "m1", 2, given=[])
    for _ in range(60):
        beat(topics, "m1", 2)
    removed(topics, "m1", UNREVOKED)


def left_and_gave_its_partition_up(topics: Topics) -> None:
    beat(topics, "m1", -1)
    removed(topics, "m1", "left the group")
    refused(topics, 25, "m1", 2)
    beat(topics, "m2", 2, 3, given=[0, 1])


def static_member_came_back_with_another_id(topics: Topics) -> None:
    beat(topics, "s2", 0, 2, given=[2], owned=[], instance_id="i")
    beat(topics, "s2", -2, instance_id="i")
    beat(topics, "s3", 0, 2, given=[2], owned=[], instance_id="i")
    refused(topics, 82, "s2", 2, instance_id="i")


def static_member_did_not_come_back(topics: Topics) -> None:
    """Its leaving does not renew its session."""
    beat(topics, "s2", 0, 2, given=[2], owned=[], instance_id="i")
    topics.now_ms += SESSION_MS - 2_000
    beat(topics, "s2", -2, instance_id="i")
    topics.now_ms += 1_000
    removed(topics, "s2", "left for a while and did not come back within the session timeout of 10000 ms")


def fenced_with_an_epoch_of_long_ago(topics: Topics) -> None:
    """After two answers that the client did not get."""
    beat(topics, "m1", 2, 3)
    beat(topics, "m1", 2, 4, owned=[0])
    refused(topics, 110, "m1", 2, owned=[0])


def fenced_with_more_than_it_was_given(topics: Topics) -> None:
    beat(topics, "m1", 2, 3)
    refused(topics, 110, "m1", 2, owned=[0, 1])


@pytest.mark.parametrize(
    "doctor",
    [
        expired_when_time_was_over,
        removed_when_the_time_to_revoke_was_over,
        left_and_gave_its_partition_up,
        static_member_came_back_with_another_id,
        static_member_did_not_come_back,
        fenced_with_an_epoch_of_long_ago,
        fenced_with_more_than_it_was_given,
    ],
)
def test_what_is_allowed_is_no_wrong(doctor: Callable[[Topics], None]) -> None:
    topics = sound()
    doctor(topics)
    assert topics.wrongs() == set()
