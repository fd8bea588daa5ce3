"""The topic watcher's decisions: the records for groups, given the offsets topic and the topics' images."""

from typing import Any
from uuid import UUID

import pytest

from kafka_why.contract.codec import CommittedOffset, encode, offset_key
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from streaming.service.topic_watch import offset_topics
from streaming.service.topic_watch.offset_topics import Images, OffsetTopics, is_doubtful

OLD, NEW = TopicImage(UUID(int=1), 4), TopicImage(UUID(int=2), 4)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"a": OLD}, {"a": OLD}, False),
        ({"a": OLD}, {"a": None}, True),
        ({"a": OLD}, {"a": NEW}, True),
        ({"a": OLD}, {"a": TopicImage(OLD.id, 9)}, False),  # more partitions count at once
        ({"a": OLD}, {}, False),  # uncertain, or nobody needs it any more
        ({"a": None}, {"a": None}, False),
        ({"a": None}, {"a": NEW}, False),  # new: counts at once
        ({}, {"a": None}, False),  # a third poll shows what only the second did
    ],
)
def test_missing_or_recreated_topic_is_polled_at_once(before: Images, now: Images, expected: bool) -> None:
    assert is_doubtful(before, now) is expected


class Watch:
    """Offsets that groups commit, and a check of the topics every 5 s."""

    def __init__(self) -> None:
        self.offsets = OffsetTopics()
        self.now_s = 0.0

    def commit(self, group_id: str, topic: str, image: TopicImage | None, *partitions: int) -> None:
        for partition in partitions or (0,):
            record = CommittedOffset(
                group_id=group_id,
                incarnation="requests-0-0",
                topic=topic,
                partition=partition,
                offset=5,
                leader_epoch=-1,
                metadata="",
                committed_at_ms=0,
                expire_at_ms=None,
                request="requests-0-1",
                topic_id=None if image is None else image.id,
            )
            self.offsets.apply(offset_key(group_id, topic, partition), encode(record))

    def forget(self, group_id: str, topic: str, partition: int = 0) -> None:
        self.offsets.apply(offset_key(group_id, topic, partition), None)

    def see(self, **images: TopicImage | None) -> list[TopicMetadata]:
        self.now_s += 5
        return self.offsets.compare(images, self.now_s)


def told(group_id: str, **images: TopicImage | None) -> TopicMetadata:
    return TopicMetadata(group_id=group_id, topics=images)


@pytest.mark.parametrize(
    ("commits", "polls", "sent"),
    [
        ([("g", "t", OLD, 0, 1)], [{"t": OLD}] * 5, [[]] * 5),
        (
            [("g", "t", OLD), ("h", "t", OLD)],
            [{"t": None}, {"t": OLD}, {"t": None}, {"t": None}],
            [[], [], [], [told("g", t=None), told("h", t=None)]],
        ),
        ([("g", "t", OLD)], [{"t": None}, {}, {"t": None}, {}], [[]] * 4),
        (
            [("g", "t", OLD, 0, 1), ("g", "u", OLD), ("g", "t", NEW, 1)],
            [{"t": NEW, "u": OLD}] * 2,
            [[], [told("g", t=NEW)]],
        ),
        ([("g", "t", None), ("g", "t", OLD, 1)], [{"t": OLD}] * 2, [[], [told("g", t=OLD)]]),
        (
            [("g", "t", OLD), ("g", "u", OLD)],
            [{"t": None, "u": OLD}, {"t": None, "u": OLD}, *[{"t": None, "u": None}] * 2],
            [[], [told("g", t=None)], [], [told("g", t=None, u=None)]],
        ),
    ],
    ids=["offsets that fit", "deletion", "no broker shows it", "made again", "an unknown id", "what is new"],
)
def test_group_is_notified_of_a_topic_change_seen_by_two_polls(
    commits: list[Any], polls: list[dict[str, TopicImage | None]], sent: list[list[TopicMetadata]]
) -> None:
    watch = Watch()
    for commit in commits:
        watch.commit(*commit)
    assert [watch.see(**images) for images in polls] == sent


def test_unsent_topic_change_is_sent_at_the_next_poll() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD)
    watch.see(t=None)
    messages = watch.see(t=None)
    watch.offsets.not_sent(messages)
    assert watch.see(t=None) == messages


def test_poll_notifies_a_limited_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_topics, "GROUPS_AT_ONCE", 2)
    watch = Watch()
    for group_id in "abcde":
        watch.commit(group_id, "t", OLD)
    watch.see(t=None)
    polls = [[message.group_id for message in watch.see(t=None)] for _ in range(4)]
    assert polls == [["a", "b"], ["c", "d"], ["e"], []]


def test_topic_change_record_names_a_limited_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_topics, "TOPICS_AT_ONCE", 2)
    watch = Watch()
    for topic in "tuv":
        watch.commit("g", topic, OLD)
    watch.see(t=None, u=None, v=None)
    assert watch.see(t=None, u=None, v=None) == [told("g", t=None, u=None)]
    watch.forget("g", "t")
    watch.forget("g", "u")
    assert watch.see(t=None, u=None, v=None) == [told("g", v=None)]


def test_group_without_offsets_is_removed_from_the_watch() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD)
    assert watch.offsets.names() == {"t"}
    watch.forget("g", "t")
    watch.forget("g", "never")
    assert watch.offsets.names() == set()
    assert [watch.see(t=None) for _ in range(3)] == [[]] * 3
