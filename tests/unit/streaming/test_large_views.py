"""A group whose record of the groups topic is too large for its topics: the topic watcher still sends it the
topics and the results that it waits for.
"""

from uuid import UUID

from kafka_why.contract.kafka.requests import RegexResolved, TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from records.truncation import AWAITED_MAX, encode_view
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.group import Topic
from state.kafka.protocols import view_of
from streaming.service.topic_watch.group_topics import ClusterTopics, GroupTopics

UNKNOWN = [f"unknown-{n:04}" for n in range(AWAITED_MAX + 1)]


def large_group() -> ConsumerGroup:
    member = ConsumerMember("m", subscribed_topic_names=UNKNOWN, subscribed_topic_regex="o.*")
    topics: dict[str, Topic | None] = {f"known-{n:04}": Topic(n.to_bytes(16), 1) for n in range(1_000)}
    return ConsumerGroup("g", "t-requests-0-0", members={"m": member}, topics=topics)


def test_group_with_a_truncated_view_still_gets_the_topics_it_waits_for() -> None:
    watcher = GroupTopics()
    watcher.apply(b"g", encode_view(view_of(large_group()), 50_000))
    assert watcher.is_waiting
    images = {name: TopicImage(UUID(int=n), 1) for n, name in enumerate([*UNKNOWN, "orders"], 1)}
    sent, resolved = watcher.compare(ClusterTopics(images, frozenset(images), 7), 0.0)
    assert isinstance(sent, TopicMetadata) and isinstance(resolved, RegexResolved)
    assert list(sent.topics) == UNKNOWN[:AWAITED_MAX]
    assert list(resolved.patterns["o.*"].topics) == ["orders"]
    without_room = GroupTopics()
    without_room.apply(b"g", encode_view(view_of(large_group()), 2_000))
    assert not without_room.is_waiting
