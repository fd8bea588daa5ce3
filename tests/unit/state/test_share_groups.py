"""Share groups: what no scenario shows."""

from typing import Any
from uuid import UUID

import pytest

from state.config import ConfigError, CoordinatorConfig
from state.dispatch import step, view_of
from state.errors import ErrorCode
from state.inputs import Failed, Outage, Quarantine, Received
from state.kafka.requests import AnyRequest, DeleteGroup, ReplyTo
from state.kafka.share.outcomes import error_of
from state.kafka.share_group import Asked, InitializingTopic, ParkedDelete, ShareGroup
from state.kafka.share_requests import (
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStatePartition,
    ShareStateResult,
)
from state.kafka.snapshot import GroupSnapshot
from state.kafka.timers import DeadlineReached, TimerKind
from state.kafka.topic_images import TopicImage, TopicImages
from state.messages import ReleaseGroup
from state.rocketmq.group import Group as RocketMqGroup
from tests.harness import invariants

TO: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 0, "api_version": 1}
CONFIG = CoordinatorConfig()
FOO = UUID(int=7)


def applied(group: Any, request: AnyRequest, at_ms: int = 1_000, n: int = 0) -> Any:
    return step(group, "g", Received(f"requests-0-{n}", request), at_ms, CONFIG)


def joined(partitions: int = 2) -> ShareGroup:
    """A group of one member, whose partitions are asked for."""
    topics: TopicImages = {"foo": TopicImage(FOO, partitions)}
    request = ShareGroupHeartbeat(
        **TO, member_id="m", member_epoch=0, subscribed_topic_names=["foo"], topics=topics
    )
    group = applied(None, request).group
    assert isinstance(group, ShareGroup)
    return group


def result(*outcomes: ShareStatePartition, task: str = "requests-0-0") -> ShareStateResult:
    return ShareStateResult(group_id="g", task=task, partitions=list(outcomes))


@pytest.mark.parametrize(
    ("member_id", "row", "error"),
    [("m", "SD11", ErrorCode.GROUP_ID_NOT_FOUND), (" ", "SH6", ErrorCode.INVALID_REQUEST)],
)
def test_a_group_of_rocketmq_is_no_share_group(member_id: str, row: str, error: ErrorCode) -> None:
    other = RocketMqGroup("g", "requests-0-0")
    request = ShareGroupHeartbeat(**TO, member_id=member_id, member_epoch=0, subscribed_topic_names=["t"])
    (reply,) = applied(other, request).replies
    assert (reply.response.rule, reply.response.error_code) == (row, error)
    (reply,) = applied(other, ShareGroupDescribe(**TO)).replies
    assert (reply.response.rule, reply.response.error_message) == ("SD2", "Group g is not a share group.")


def test_an_outcome_that_repeats_itself_counts_once() -> None:
    """Row SP12: within a result, and a second result of the same task."""
    group = joined()
    once, twice = ShareStatePartition(FOO, 0), ShareStatePartition(FOO, 0, 31)
    effects = applied(group, result(once, twice, once), n=1)
    assert [entry.rule for entry in effects.history] == ["SI13"]
    assert group.initialized[FOO.bytes].partitions == [0]
    before = view_of(group)
    effects = applied(group, result(twice, ShareStatePartition(FOO, 9), ShareStatePartition(UUID(int=8), 0)))
    assert (effects.rules, effects.history, view_of(group)) == (["SP12"], [], before)


def test_an_outcome_for_a_group_that_is_gone_concerns_nobody() -> None:
    """Row SP12."""
    effects = applied(None, result(ShareStatePartition(FOO, 0)))
    assert effects.group is None and not effects.replies and not effects.history


def test_partitions_are_initialized_whatever_the_order_of_their_outcomes() -> None:
    group = joined(4)
    applied(group, result(*(ShareStatePartition(FOO, n) for n in (3, 1))), n=1)
    applied(group, result(*(ShareStatePartition(FOO, n) for n in (0, 2))), n=2)
    assert group.initialized[FOO.bytes].partitions == [0, 1, 2, 3]
    assert not group.initializing
    invariants.check(group)


def test_the_view_has_the_tasks_of_like_partitions_together() -> None:
    """Row SP8: what was asked for at once, and how."""
    group = joined()
    group.initializing[FOO.bytes] = InitializingTopic(
        "foo",
        {
            0: Asked("a", 2, -1, 5),
            1: Asked("b", 3, 0, 4, 15),
            2: Asked("a", 2, -1, 5),
            3: Asked("", 2, -1, 6),
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


def test_a_quarantine_answers_what_waits() -> None:
    """Row F2: a DeleteGroups that waits for the share coordinator. Its deadline stops."""
    group = joined()
    applied(group, ShareGroupHeartbeat(**TO, member_id="m", member_epoch=-1), n=1)
    applied(group, DeleteGroup(**TO), n=2)
    assert [parked.deadline_ms for parked in group.parked_deletes] == [61_000]
    deadline = DeadlineReached(61_000, TimerKind.DELETION)
    effects: Any = step(group, "g", Quarantine(deadline, "boom"), 61_000, CONFIG)
    (reply,) = effects.replies
    assert (reply.response.request, reply.response.rule) == ("requests-0-2", "F2")
    assert reply.response.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not group.parked_deletes
    assert applied(group, ReleaseGroup(**TO), 62_000).group.quarantined is None


def test_a_request_waits_longer_by_an_outage() -> None:
    """Row F5: time stands still without a coordinator, and sessions begin anew."""
    group = joined()
    group.parked_deletes = [ParkedDelete(ReplyTo(0, "c", "requests-0-9"), 50_000)]
    step(group, "g", Outage(2_000, 12_000), 12_000, CONFIG)
    assert group.parked_deletes[0].deadline_ms == 60_000
    assert group.members["m"].session_deadline_ms == 57_000
    assert group.metadata_stale


def test_a_request_whose_step_failed_is_answered() -> None:
    request = ShareGroupHeartbeat(**TO, member_id="m", member_epoch=2)
    effects: Any = step(joined(), "g", Failed("requests-0-1", request), 2_000, CONFIG)
    (reply,) = effects.replies
    assert (reply.response.rule, reply.response.error_code) == ("F1", ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize(
    ("code", "error"),
    [(31, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), (9_999, ErrorCode.UNKNOWN_SERVER_ERROR)],
)
def test_an_error_of_the_share_coordinator_is_one_of_kafkas(code: int, error: ErrorCode) -> None:
    assert error_of(code) is error


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"group.share.max.size": 1_001}, "group.share.max.size must be from 1 to 1000, not 1001"),
        ({"group.share.max.size": 0}, "group.share.max.size must be from 1 to 1000, not 0"),
        (
            {"group.share.session.timeout.ms": 70_000},
            r"group.share.session.timeout.ms \(70000\) is not from group.share.min.session.timeout.ms",
        ),
        (
            {"group.share.min.session.timeout.ms": 1, "group.share.session.timeout.ms": 5_000},
            r"group.share.heartbeat.interval.ms \(5000\) is not below group.share.session.timeout.ms",
        ),
    ],
)
def test_the_coordinators_settings_have_the_bounds_of_kafka(settings: dict[str, Any], text: str) -> None:
    """Rows SN1 to SN5."""
    with pytest.raises(ConfigError, match=text):
        CONFIG.with_settings(settings)
