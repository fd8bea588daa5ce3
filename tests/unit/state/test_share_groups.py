"""Share groups: what no scenario shows."""

from typing import Any
from uuid import UUID

import pytest

from kafka_why.contract.kafka.requests import AnyRequest, DeleteGroup, ReplyTo
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    AlterSharePartition,
    AlterShareTopic,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStatePartition,
    ShareStateResult,
    TopicImage,
    TopicImages,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.messages import ErrorCode, ReleaseGroup
from state.config import CoordinatorConfig
from state.dispatch import step, view_of
from state.inputs import Outage, Quarantine, Received
from state.kafka.group import DeadlineReached, TimerKind
from state.kafka.share_group import InitializationTask, InitializingTopic, Parked, ParkedKind, ShareGroup
from state.rocketmq.group import RocketMqGroup

TO: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 0, "api_version": 1}
CONFIG = CoordinatorConfig()
FOO = UUID(int=7)


def applied(group: Any, request: AnyRequest, at_ms: int = 1_000, n: int = 0) -> Any:
    return step(group, "g", Received(f"requests-0-{n}", request), at_ms, CONFIG)


def joined(partitions: int = 2) -> ShareGroup:
    """Return a group of one member, whose partitions are asked for."""
    topics: TopicImages = {"foo": TopicImage(FOO, partitions)}
    request = ShareGroupHeartbeat(
        **TO, member_id="m", member_epoch=0, subscribed_topic_names=["foo"], topics=topics
    )
    group = applied(None, request).group
    assert isinstance(group, ShareGroup)
    return group


@pytest.mark.parametrize(
    ("request_", "row"),
    [
        (ShareGroupHeartbeat(**TO, member_id="m", member_epoch=0, subscribed_topic_names=["t"]), "SD11"),
        (ShareGroupHeartbeat(**TO, member_id=" ", member_epoch=0, subscribed_topic_names=["t"]), "SH6"),
        (ShareGroupDescribe(**TO), "SD2"),
        (AlterShareGroupOffsets(**TO, topics=[]), "SD11"),
        (DeleteShareGroupOffsets(**TO, topics=[]), "SD11"),
        (DescribeShareGroupOffsets(**TO), "SD11"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_share_heartbeat_to_a_rocketmq_group_is_refused(request_: AnyRequest, row: str) -> None:
    (reply,) = applied(RocketMqGroup("g", "requests-0-0"), request_).replies
    error = ErrorCode.INVALID_REQUEST if row == "SH6" else ErrorCode.GROUP_ID_NOT_FOUND
    assert (reply.response.rule, reply.response.error_code) == (row, error)


def left() -> ShareGroup:
    """Return a group without members, with initialized partitions of foo."""
    group = joined(20)
    outcomes = [ShareStatePartition(FOO, n) for n in range(20)]
    applied(group, ShareStateResult(group_id="g", task="requests-0-0", partitions=outcomes), n=1)
    applied(group, ShareGroupHeartbeat(**TO, member_id="m", member_epoch=-1), n=2)
    return group


def altering(*topics: str, images: TopicImages | None = None, partition: int = 0) -> AlterShareGroupOffsets:
    named = [AlterShareTopic(topic, [AlterSharePartition(partition, 7)]) for topic in topics]
    return AlterShareGroupOffsets(**TO, topics=named, images=images)


def test_so9b_unknown_topic_metadata_is_a_retriable_error() -> None:
    """Row "SO9b": the gateway could not reach the brokers."""
    for stored, request in (
        (None, altering("foo")),
        (left(), altering("bar")),
        (left(), DeleteShareGroupOffsets(**TO, topics=["bar"])),
    ):
        (reply,) = applied(stored, request, n=3).replies
        assert (reply.response.rule, reply.response.error_code) == (
            "SO9b",
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
    assert not applied(left(), altering("foo"), n=3).replies  # the group knows it


def test_only_offset_changes_that_need_a_task_wait() -> None:
    """Row "SO9d": each may be as large as a record."""
    group = left()
    for n in range(10):
        assert not applied(group, altering("foo", partition=n), n=10 + n).replies
    (reply,) = applied(group, altering("foo", partition=10), n=20).replies
    assert (reply.response.rule, reply.response.error_code) == (
        "SO9d",
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
    applied(group, DeleteGroup(**TO), n=21)
    assert [parked.reply_to.request for parked in group.parked] == ["requests-0-21"]


def test_a_request_names_no_more_partitions_than_a_group_may_have() -> None:
    """Row TA31: even if they do not exist, because the answer is kept until it is given."""
    names = [str(n) for n in range(CONFIG.group_max_partitions)]
    images: TopicImages = {"foo": TopicImage(FOO, 1), **dict.fromkeys(names)}
    for request in (
        altering("foo", *names, images=images),
        DeleteShareGroupOffsets(**TO, topics=["foo", *names], images=images),
    ):
        (reply,) = applied(left(), request, n=3).replies
        assert reply.response.rule == "TA31"


def test_sp15_task_check_is_due_when_the_next_task_can_be_overdue() -> None:
    """Row SP15: each task has one entry, when it is 60 s old."""
    group = left()
    applied(group, altering("foo", partition=0), at_ms=1_000, n=3)
    applied(group, altering("foo", partition=1), at_ms=31_000, n=4)
    entries = []
    while group.overdue_deadline_ms is not None:
        at_ms = group.overdue_deadline_ms
        effects: Any = step(group, "g", DeadlineReached(at_ms, TimerKind.TASK), at_ms, CONFIG)
        entries += [(at_ms, entry.partitions) for entry in effects.history]
    assert entries == [(61_000, {"foo": [0]}), (91_000, {"foo": [1]})]


def test_the_view_has_the_tasks_of_like_partitions_together() -> None:
    """Row SP8: what was asked for at once, and how."""
    group = joined()
    group.initializing[FOO.bytes] = InitializingTopic(
        "foo",
        {
            0: InitializationTask("a", 2, -1, 5),
            1: InitializationTask("b", 3, 0, 4, 15),
            2: InitializationTask("a", 2, -1, 5),
            3: InitializationTask("", 2, -1, 6),
        },
    )
    view = view_of(group)
    assert isinstance(view, GroupSnapshot) and view.consumer and view.consumer.share
    tasks = [
        (t.task, t.kind, t.asked_at_ms, [(p.partitions, p.state_epoch, p.start_offset) for p in t.topics])
        for t in view.consumer.share.tasks or ()
    ]
    assert tasks == [("b", "initialize", 4, [([1], 3, 0)]), ("a", "initialize", 5, [([0, 2], 2, -1)])]
    assert view.group_type == "share" and view.protocol_type == "share"


def test_quarantine_answers_waiting_requests() -> None:
    """Row F2: a DeleteGroups that waits for the share coordinator. Its deadline stops."""
    group = joined()
    applied(group, ShareGroupHeartbeat(**TO, member_id="m", member_epoch=-1), n=1)
    applied(group, DeleteGroup(**TO), n=2)
    assert [parked.deadline_ms for parked in group.parked] == [61_000]
    deadline = DeadlineReached(61_000, TimerKind.PARKED)
    effects: Any = step(group, "g", Quarantine(deadline, "boom"), 61_000, CONFIG)
    (reply,) = effects.replies
    assert (reply.response.request, reply.response.rule) == ("requests-0-2", "F2")
    assert reply.response.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not group.parked
    assert applied(group, ReleaseGroup(**TO), 62_000).group.quarantined is None


def test_parked_request_timeout_is_extended_by_an_outage() -> None:
    """Row F5: time stands still without a coordinator, and sessions begin anew."""
    group = joined()
    group.parked = [Parked(ParkedKind.DELETE_GROUP, ReplyTo(0, "c", "requests-0-9"), 50_000)]
    step(group, "g", Outage(2_000, 12_000), 12_000, CONFIG)
    assert group.parked[0].deadline_ms == 60_000
    assert group.members["m"].session_deadline_ms == 57_000
    assert group.metadata_stale
