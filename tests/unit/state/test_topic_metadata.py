"""Topics that were deleted, and the ids of them that a group remembers."""

from uuid import UUID

from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.kafka.offsets import DELETED_IDS_MAX
from state.timeline import Row, Timeline


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
