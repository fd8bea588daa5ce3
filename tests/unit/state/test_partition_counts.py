"""Partition counts in JoinGroups for an assignment by the coordinator, and their bound."""

from dataclasses import replace
from itertools import count
from uuid import UUID

import pytest

from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    JoinGroup,
    OffsetCommit,
    Protocol,
    TopicMetadata,
)
from kafka_why.contract.kafka.responses import JoinGroupResponse
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    encode_subscription,
)
from kafka_why.numbers import INT32_MAX
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.context import Effects
from state.kafka.group import Topic
from state.kafka.offsets import DELETED_IDS_MAX
from state.kafka.protocols import protocol_of, step
from state.protocol import Received
from state.timeline import Row, Timeline

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0, group_max_partitions=10)
NAME = "coordinator:sticky"
OFFSETS = count()


def join(topic: str = "t", partitions: int | None = None, **fields: object) -> JoinGroup:
    given: dict[str, object] = {
        "group_id": "g",
        "correlation_id": "c",
        "reply_partition": 0,
        "api_version": 3,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [Protocol(NAME, encode_subscription(Subscription((topic,))))],
        "partitions_per_topic": {} if partitions is None else {topic: partitions},
    }
    return JoinGroup(**given | fields)  # type: ignore[arg-type]


def send(
    group: ClassicGroup | None, request: JoinGroup, config: CoordinatorConfig = CONFIG
) -> tuple[Effects, ClassicGroup]:
    effects = step(group, "g", Received(f"requests-0-{next(OFFSETS)}", request), 0, config)
    assert isinstance(effects.group, ClassicGroup)
    return effects, effects.group


def test_subscription_to_known_topics_counts_towards_the_group_limit() -> None:
    _, group = send(None, join("t", 6, partitions_per_topic={"t": 6}))
    group.partitions_per_topic = {"u": 10}  # of the last generation
    effects, group = send(group, join("u"))
    assert effects.replies[-1].response.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_counts_of_unsubscribed_topics_are_dropped() -> None:
    _, group = send(None, join("t", 6))
    (member,) = group.members
    for n in range(100):
        effects, group = send(group, join("t", member_id=member, partitions_per_topic={f"x{n}": 9, "t": 6}))
        assert effects.replies == []
    assert sum(group.reported_partition_counts.values()) <= CONFIG.group_max_partitions


def test_counts_over_a_newer_limit_are_ignored_and_reported() -> None:
    """A state from before counts were bounded may hold any count. Nothing is computed from it."""
    large = replace(CONFIG, group_max_partitions=INT32_MAX)
    subscription = encode_subscription(Subscription(("t", "u")))
    request = join(
        protocols=[Protocol(NAME, subscription)], partitions_per_topic={"t": INT32_MAX - 3, "u": 3}
    )
    _, group = send(None, request, large)
    (due,) = protocol_of(group).due_deadlines(group, 0, CONFIG)
    effects = step(group, "g", due, 0, CONFIG)
    assert isinstance(effects.replies[0].response, JoinGroupResponse)
    assert effects.history[-1].reason.endswith("group.max.partitions (10) leaves out t")
    assert isinstance(effects.group, ClassicGroup)
    member: ClassicGroupMember = next(iter(effects.group.members.values()))
    assert [tuple(p) for p in decode_assignment(member.assignment).partitions] == [
        ("u", 0),
        ("u", 1),
        ("u", 2),
    ]


def image(number: int, partitions: int) -> TopicImage:
    return TopicImage(UUID(int=number), partitions)


def topic(number: int, partitions: int) -> Topic:
    return Topic(UUID(int=number).bytes, partitions)


@pytest.mark.parametrize(
    ("reports", "known"),
    [
        ([("t", {"t": image(1, 4)}), ("t", {"t": image(1, 6)})], {"t": topic(1, 6)}),
        ([("t", {"t": image(1, 6)}), ("t", None)], {"t": topic(1, 6)}),
        ([("t", {"t": image(1, 6)}), ("t", {"t": image(1, 4)})], {"t": topic(1, 6)}),
        ([("t", {"t": image(1, 6)}), ("t", {"t": image(2, 3)})], {"t": topic(2, 3)}),
        ([("t", {"t": image(1, 6)}), ("t", {"t": None})], {"t": None}),
        ([("t", {"t": image(1, 6), "owned": image(2, 1)})], {"t": topic(1, 6)}),
        ([("t", {"t": image(1, 6)}), ("u", {"u": image(3, 1)})], {"u": topic(3, 1)}),
        ([("t", {"t": image(1, 6)}), ("refused", {"t": image(9, 9)})], {"t": topic(1, 6)}),
    ],
    ids=["growth", "nothing", "a lower count", "another id", "deletion", "owned", "another topic", "refused"],
)
def test_group_keeps_the_latest_counts_of_its_subscribed_topics(
    reports: list[tuple[str, TopicImages | None]], known: dict[str, Topic | None]
) -> None:
    """One static member joins again and again, and forms the generation."""
    timeline = Timeline("g", None, CoordinatorConfig())
    for n, (subscribed, topics) in enumerate(reports):
        request = JoinGroup(
            group_id="g",
            correlation_id="c",
            reply_partition=0,
            api_version=9,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=10_000,
            group_instance_id="i",
            protocol_type="connect" if subscribed == "refused" else PROTOCOL_TYPE,
            protocols=[Protocol("range", encode_subscription(Subscription((subscribed,))))],
            topics=topics,
        )
        timeline.apply(Row(n * 5_000, f"requests-0-{n}", request))
        timeline.fire_until(n * 5_000 + 3_000)
    assert isinstance(timeline.group, ClassicGroup)
    assert timeline.group.topics == known


def test_remembered_ids_of_deleted_topics_are_bounded() -> None:
    timeline = Timeline("g", None, CoordinatorConfig())
    ids = [UUID(int=number) for number in range(1, DELETED_IDS_MAX + 12)]
    for number, topic_id in enumerate(ids):
        commit = OffsetCommit(
            group_id="g",
            correlation_id="c",
            reply_partition=0,
            api_version=9,
            topics=[CommittedTopic("t", [CommittedPartition(0, 5)], topic_id)],
        )
        image = None if number % 2 else TopicImage(UUID(int=10_000 + number), 1)
        for request in (commit, TopicMetadata(group_id="g", topics={"t": image})):
            timeline.apply(Row(1_000, f"requests-0-{number}", request))
    assert isinstance(timeline.group, ClassicGroup)
    assert timeline.group.deleted_topic_ids == [i.bytes for i in ids[-DELETED_IDS_MAX:]]
