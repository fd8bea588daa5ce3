"""What a classic group keeps of the topics that its JoinGroups report, for an upgrade."""

from uuid import UUID

import pytest

from kafka_why.contract.kafka.requests import JoinGroup, Protocol
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, Subscription, encode_subscription
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.kafka.group import Topic
from state.timeline import Row, Timeline


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
def test_a_group_knows_the_latest_reports_of_the_topics_that_its_members_subscribe_to(
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
