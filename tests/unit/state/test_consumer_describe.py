"""ConsumerGroupDescribe, DescribeGroups and DeleteGroups of a consumer group, and its view."""

from typing import Any
from uuid import UUID

from msgspec import UNSET

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.inputs import Received
from state.kafka.any_group import KafkaGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.group import Offset, Topic
from state.kafka.protocols import view_of
from state.kafka.requests import AnyAnswered, ConsumerGroupDescribe, DeleteGroup, DescribeGroup
from state.kafka.responses import (
    AnyResponse,
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
    DescribeGroupResponse,
)
from state.kafka.step import step

A, B, GONE = (UUID(int=n) for n in (1, 2, 3))
TO: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 0}


def group_of_two() -> ConsumerGroup:
    """Member m gives up a partition and has one of a deleted topic. Member o is a classic one at -2."""
    mine = ConsumerMember(
        "m",
        rack_id="rack",
        client_id="client",
        client_host="/h",
        server_assignor="range",
        subscribed_topic_names=["t"],
        subscribed_topic_regex="x.*",
        member_epoch=6,
        assigned={B.bytes: {3: 1}, A.bytes: {2: 5, 0: 5}, GONE.bytes: {0: 1}},
        pending_revocation={A.bytes: {1: 4}},
    )
    other = ConsumerMember("o", "i", member_epoch=-2, classic=ClassicMember(10_000, []))
    return ConsumerGroup(
        "g",
        "requests-0-0",
        group_epoch=7,
        assignment_epoch=6,
        members={"m": mine, "o": other},
        static_members={"i": "o"},
        target={"m": {A.bytes: [0], GONE.bytes: [0]}},
        topics={"t": Topic(A.bytes, 4), "a": Topic(B.bytes, 4), "none": None},
    )


def answer(group: KafkaGroup | None, request: AnyAnswered) -> AnyResponse:
    (reply,) = step(group, "g", Received("requests-0-1", request), 1_000, CoordinatorConfig()).replies
    return reply.response


def describe(group: KafkaGroup | None) -> ConsumerGroupDescribeResponse:
    described = answer(group, ConsumerGroupDescribe(api_version=1, **TO))
    assert isinstance(described, ConsumerGroupDescribeResponse)
    return described


def test_a_consumer_group_is_described_with_what_its_members_answer_for() -> None:
    """Rows AD3 to AD5."""
    described = describe(group_of_two())
    assert (described.rule, described.error_code) == ("AD3", ErrorCode.NONE)
    epochs = (described.group_epoch, described.assignment_epoch)
    assert (described.group_state, *epochs, described.assignor_name) == ("Assigning", 7, 6, "range")
    mine, other = described.members
    assert mine == ConsumerGroupMemberDescription(
        member_id="m",
        instance_id=None,
        rack_id="rack",
        member_epoch=6,
        client_id="client",
        client_host="/h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex="x.*",
        assignment=[AssignedTopicPartitions(B, [3], "a"), AssignedTopicPartitions(A, [0, 1, 2], "t")],
        target_assignment=[AssignedTopicPartitions(A, [0], "t")],
        member_type=1,
    )
    assert (other.instance_id, other.member_epoch, other.member_type) == ("i", -2, 0)
    assert (other.assignment, other.target_assignment) == ([], [])


def test_what_is_no_consumer_group_is_not_found_and_the_text_says_which() -> None:
    """Row AD2."""
    absent, classic = describe(None), describe(ClassicGroup("g", "requests-0-0"))
    for described, message in (
        (absent, "Group g not found."),
        (classic, "Group g is not a consumer group."),
    ):
        assert (described.rule, described.error_code) == ("AD2", ErrorCode.GROUP_ID_NOT_FOUND)
        assert (described.error_message, described.group_state, described.group_epoch) == (message, "", 0)


def test_describe_groups_has_no_consumer_group() -> None:
    """Rows AD8, AD9."""
    old = answer(group_of_two(), DescribeGroup(api_version=5, **TO))
    new = answer(group_of_two(), DescribeGroup(api_version=6, **TO))
    assert isinstance(old, DescribeGroupResponse) and isinstance(new, DescribeGroupResponse)
    assert (old.rule, old.error_code, old.error_message) == ("AD8", ErrorCode.NONE, UNSET)
    assert (new.rule, new.error_code) == ("AD9", ErrorCode.GROUP_ID_NOT_FOUND)
    assert new.error_message == "Group g is not a classic group."
    assert (old.group_state, old.protocol_type, old.members) == ("Dead", "", [])
    assert (new.group_state, new.protocol_type, new.members) == ("Dead", "", [])


def test_only_an_empty_consumer_group_can_be_deleted() -> None:
    """Rows AD10, AD11: a member at -2 counts."""
    group = group_of_two()
    del group.members["m"]
    delete = DeleteGroup(api_version=2, **TO)
    assert answer(group, delete).error_code is ErrorCode.NON_EMPTY_GROUP
    empty = ConsumerGroup("g", "requests-0-0", offsets={"t": {0: Offset(1, -1, "", 0, None, None)}})
    effects = step(empty, "g", Received("requests-0-1", delete), 1_000, CoordinatorConfig())
    assert effects.group is None
    assert [(c.topic, c.partition, c.offset) for c in effects.offsets] == [("t", 0, None)]


def test_the_view_has_the_partitions_by_name_and_the_topics_for_the_watcher() -> None:
    group = group_of_two()
    view = view_of(group)
    assert view.consumer
    mine, other = (member.consumer for member in view.members)
    assert mine is not None and other is not None
    assert mine.assigned == {str(GONE): [0], "a": [3], "t": [0, 2]}
    assert (mine.revoking, mine.target) == ({"t": [1]}, {str(GONE): [0], "t": [0]})
    assert (mine.member_type, other.member_type) == ("consumer", "classic")
    assert list(view.consumer.topics) == ["a", "none", "t"]
    assert (view.consumer.unknown_topics, view.consumer.unresolved_regexes) == ([], ["x.*"])
    assert (view.state, view.generation, view.protocol_type) == ("Assigning", 7, "consumer")


def test_a_classic_group_shows_the_topics_that_its_conversion_waits_for() -> None:
    """Row MI14."""
    assert view_of(ClassicGroup("g", "requests-0-0")).wanted_topics is UNSET
    assert view_of(ClassicGroup("g", "requests-0-0", wanted_topics=["t"])).wanted_topics == ["t"]
