"""Offsets of a consumer group: who may commit and fetch, by member epoch, and when they expire."""

from typing import Any
from uuid import UUID

import pytest

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.inputs import Received
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.effects import Effects
from state.kafka.group import Offset, Topic
from state.kafka.requests import (
    AnyRequest,
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicPartitions,
    TxnOffsetCommit,
)
from state.kafka.responses import OffsetCommitResponse, OffsetDeleteResponse, TxnOffsetCommitResponse
from state.kafka.step import step
from state.kafka.timers import DeadlineReached, TimerKind

A, B = UUID(int=1), UUID(int=2)
NONE, STALE, ILLEGAL = ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
CONFIG = CoordinatorConfig()
TO: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 0, "api_version": 9}


def group_of(*, epoch: int = 7, classic: bool = False) -> ConsumerGroup:
    """Member m has partition 0 since epoch 5 and has to give up partition 1, which it has since epoch 3."""
    member = ConsumerMember(
        "m",
        subscribed_topic_names=["t"],
        member_epoch=epoch,
        assigned={A.bytes: {0: 5}},
        pending_revocation={A.bytes: {1: 3}},
        session_deadline_ms=45_000,
        classic=ClassicMember(10_000, []) if classic else None,
    )
    return ConsumerGroup("g", "requests-0-0", members={"m": member}, topics={"t": Topic(A.bytes, 4)})


def apply(group: ConsumerGroup, request: AnyRequest, now_ms: int = 1_000) -> Effects:
    return step(group, "g", Received("requests-0-9", request), now_ms, CONFIG)


def topics(*partitions: int, topic_id: UUID | None = None, name: str = "t") -> list[CommittedTopic]:
    return [CommittedTopic(name, [CommittedPartition(p, 100 + p) for p in partitions], topic_id)]


def commit(group: ConsumerGroup, epoch: int, *partitions: int, **fields: object) -> tuple[str, ErrorCode]:
    """The row and the error of an OffsetCommit."""
    made: dict[str, Any] = TO | {"member_id": "m", "topics": topics(*partitions)} | fields
    (reply,) = apply(group, OffsetCommit(generation_id=epoch, **made)).replies
    assert isinstance(reply.response, OffsetCommitResponse)
    return reply.response.rule, reply.response.error_code


def txn_commit(group: ConsumerGroup, epoch: int, *partitions: int, **fields: object) -> tuple[str, ErrorCode]:
    """The row and the error of a TxnOffsetCommit."""
    made: dict[str, Any] = TO | {"api_version": 5, "member_id": "m", "topics": topics(*partitions)} | fields
    request = TxnOffsetCommit(
        transactional_id="t",
        producer_id=1,
        producer_epoch=0,
        txn_version=2,
        txn_partition=0,
        txn_position=5,
        generation_id=epoch,
        **made,
    )
    (reply,) = apply(group, request).replies
    assert isinstance(reply.response, TxnOffsetCommitResponse)
    return reply.response.rule, reply.response.error_code


def fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> tuple[str, ErrorCode]:
    request = OffsetFetch(member_id=member_id, member_epoch=epoch, **TO)
    (reply,) = apply(group, request).replies
    return reply.response.rule, reply.response.error_code


@pytest.mark.parametrize(
    ("epoch", "partitions", "verdict"),
    [
        (7, (0, 1, 2, 3), ("OF7", NONE)),
        (8, (0,), ("OF8", STALE)),
        (6, (0, 1), ("OF10", NONE)),
        (5, (0, 1), ("OF10", NONE)),
        (4, (1,), ("OF10", NONE)),
        (4, (1, 0), ("OF12", STALE)),
        (6, (0, 2), ("OF11", STALE)),
        (-1, (0,), ("OF12", STALE)),
    ],
)
def test_a_commit_of_an_older_epoch_is_for_the_partitions_the_member_had_then(
    epoch: int, partitions: tuple[int, ...], verdict: tuple[str, ErrorCode]
) -> None:
    group = group_of()
    assert commit(group, epoch, *partitions) == verdict
    row, error = verdict
    stored = {p: 100 + p for p in partitions} if error is NONE else {}
    assert {p: o.offset for p, o in group.offsets.get("t", {}).items()} == stored, "all or nothing: OF13"
    assert txn_commit(group_of(), epoch, *partitions, api_version=6)[1] is error, "KIP-1319"
    error = ILLEGAL if error is STALE else error
    assert commit(group_of(classic=True), epoch, *partitions) == (row, error)
    assert txn_commit(group_of(), epoch, *partitions)[1] is error, "row OF18"
    assert txn_commit(group_of(classic=True), epoch, *partitions)[1] is error
    assert txn_commit(group_of(classic=True), epoch, *partitions, api_version=6)[1] is error


def test_the_topic_id_of_a_commit_decides_what_the_member_has() -> None:
    assert commit(group_of(), 6, topics=topics(0, topic_id=A)) == ("OF10", NONE)
    assert commit(group_of(), 6, topics=topics(0, topic_id=B)) == ("OF11", STALE)
    assert commit(group_of(), 6, topics=topics(0, name="other", topic_id=A)) == ("OF10", NONE)
    assert commit(group_of(), 6, topics=topics(0, name="other")) == ("OF11", STALE)
    assert txn_commit(group_of(), 6, topics=topics(0, name="other")) == ("OF11", ILLEGAL)


def test_who_may_commit() -> None:
    """Rows OF3 to OF6."""
    for member_id in ("", "other"):
        assert commit(group_of(), -1, 0, member_id=member_id) == ("OF5", UNKNOWN)
    assert commit(group_of(), 7, 0, api_version=8) == ("OF6", ErrorCode.UNSUPPORTED_VERSION)
    assert commit(group_of(classic=True), 7, 0, api_version=8) == ("OF7", NONE)
    empty = ConsumerGroup("g", "requests-0-0")
    assert commit(empty, -1, 0, member_id="anyone", api_version=2) == ("OF3", NONE)
    assert commit(empty, 0, 0) == ("OF5", UNKNOWN)
    assert txn_commit(group_of(), -1, 3, member_id="") == ("TO8", NONE)
    assert txn_commit(group_of(), -1, 3, member_id="", group_instance_id="i") == ("OF5", UNKNOWN)
    assert txn_commit(empty, -1, 3, member_id="anyone") == ("TO8", NONE)


def test_a_commit_extends_no_session() -> None:
    """Row OF15."""
    group = group_of()
    effects = apply(group, OffsetCommit(generation_id=7, member_id="m", topics=topics(0), **TO))
    assert not effects.history and group.members["m"].session_deadline_ms == 45_000


def test_a_fetch_has_the_very_epoch_of_its_member() -> None:
    """Rows OF21 to OF23."""
    group = group_of()
    assert fetch(group, None, -1) == ("Q2", NONE)
    assert fetch(group, "m", 7) == ("Q2", NONE)
    for member_id in (None, "", "other"):
        assert fetch(group, member_id, 7) == ("OF22", UNKNOWN)
    for epoch in (-1, 6, 8):
        assert fetch(group, "m", epoch) == ("OF23", STALE)
    assert fetch(group_of(classic=True), "m", 6) == ("OF23", ILLEGAL)


def test_members_do_not_prevent_the_deletion_of_offsets() -> None:
    """Row OF26."""
    group = group_of()
    group.offsets = {name: {0: Offset(1, -1, "", 0, None, None)} for name in ("t", "u")}
    request = OffsetDelete(topics=[TopicPartitions("t", [0]), TopicPartitions("u", [0])], **TO)
    (reply,) = apply(group, request).replies
    assert isinstance(reply.response, OffsetDeleteResponse)
    errors = [topic.partitions[0].error_code for topic in reply.response.topics]
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE]
    assert list(group.offsets) == ["t"]


def test_offsets_expire_by_the_time_of_their_commit_whatever_the_state() -> None:
    """Rows OF27 to OF29: of a group with members and of an Empty one."""
    due_ms = CONFIG.offsets_retention_ms + CONFIG.offsets_retention_check_interval_ms
    for group in (group_of(), ConsumerGroup("g", "requests-0-0", state_timestamp_ms=due_ms)):
        group.offsets = {name: {0: Offset(1, -1, "", 0, None, None)} for name in ("t", "u")}
        effects = step(group, "g", DeadlineReached(due_ms, TimerKind.RETENTION), due_ms, CONFIG)
        entry = effects.history[0]
        gone = {"u": [0]} if group.members else {"t": [0], "u": [0]}
        assert (entry.rule, entry.partitions) == ("OF27", gone)
        assert (effects.group is None) is (not group.members)
        assert ("Z6" in effects.rules) is (not group.members)
