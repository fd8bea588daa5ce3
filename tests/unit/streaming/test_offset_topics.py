"""The topic watcher's decisions: the records for groups, given the offsets topic and the topics' images."""

from itertools import pairwise
from uuid import UUID

import pytest

from records.codec import CommittedOffset, encode, offset_key
from state.kafka.requests import TopicMetadata
from state.kafka.topic_images import TopicImage
from streaming.service.topic_watch import offset_topics
from streaming.service.topic_watch.offset_topics import Images, OffsetTopics, is_in_doubt
from streaming.service.topic_watch.resend import FIRST_PAUSE_S, LONGEST_PAUSE_S

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
        ({}, {"a": None}, False),  # a third look shows what only the second did
    ],
)
def test_another_look_follows_at_once_where_a_topic_looks_gone(
    before: Images, now: Images, expected: bool
) -> None:
    assert is_in_doubt(before, now) is expected


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
        return self.offsets.see(images, self.now_s)


def told(group_id: str, **images: TopicImage | None) -> TopicMetadata:
    return TopicMetadata(group_id=group_id, topics=images)


def test_offsets_that_fit_are_nobodys_business() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD, 0, 1)
    assert watch.offsets.names() == {"t"}
    assert [watch.see(t=OLD) for _ in range(5)] == [[]] * 5


def test_a_topic_is_deleted_when_two_answers_in_a_row_do_not_have_it() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD)
    watch.commit("h", "t", OLD)
    looks = [watch.see(t=None), watch.see(t=OLD), watch.see(t=None), watch.see(t=None)]
    assert looks == [[], [], [], [told("g", t=None), told("h", t=None)]]


def test_a_topic_that_a_broker_cannot_show_is_there() -> None:
    """Its metadata has another error, or is requested for the first time, so it has no confirmed image."""
    watch = Watch()
    watch.commit("g", "t", OLD)
    nothing: Images = {}
    looks = [watch.see(t=None), watch.see(**nothing), watch.see(t=None), watch.see(**nothing)]
    assert looks == [[]] * 4


def test_a_topic_that_was_made_again_is_told_by_its_new_id() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD, 0, 1)
    watch.commit("g", "u", OLD)
    watch.commit("g", "t", NEW, 1)
    looks = [watch.see(t=NEW, u=OLD), watch.see(t=NEW, u=OLD)]
    assert looks == [[], [told("g", t=NEW)]]
    watch.forget("g", "t", 0)
    assert [watch.see(t=NEW, u=OLD) for _ in range(10)] == [[]] * 10


def test_an_offset_of_an_unknown_topic_id_is_told_it() -> None:
    watch = Watch()
    watch.see(t=OLD)
    watch.commit("g", "t", None)
    watch.commit("g", "t", OLD, 1)
    assert watch.see(t=OLD) == [told("g", t=OLD)]


def test_who_does_not_follow_is_told_again_after_a_pause_that_grows() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD)
    watch.see(t=None)
    times = [watch.now_s for _ in range(3_000) if watch.see(t=None)]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_what_is_new_is_told_at_once() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD)
    watch.commit("g", "u", OLD)
    watch.see(t=None, u=OLD)
    assert watch.see(t=None, u=OLD) == [told("g", t=None)]
    assert watch.see(t=None, u=None) == []
    assert watch.see(t=None, u=None) == [told("g", t=None, u=None)]


def test_what_could_not_be_sent_is_told_at_the_next_look() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD)
    watch.see(t=None)
    messages = watch.see(t=None)
    watch.offsets.not_sent(messages)
    assert watch.see(t=None) == messages


def test_a_look_touches_no_more_groups_than_the_query_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_topics, "GROUPS_AT_ONCE", 2)
    watch = Watch()
    for group_id in "abcde":
        watch.commit(group_id, "t", OLD)
    watch.see(t=None)
    looks = [[message.group_id for message in watch.see(t=None)] for _ in range(4)]
    assert looks == [["a", "b"], ["c", "d"], ["e"], []]


def test_a_record_names_no_more_topics_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_topics, "TOPICS_AT_ONCE", 2)
    watch = Watch()
    for topic in "tuv":
        watch.commit("g", topic, OLD)
    watch.see(t=None, u=None, v=None)
    assert watch.see(t=None, u=None, v=None) == [told("g", t=None, u=None)]
    watch.forget("g", "t")
    watch.forget("g", "u")
    assert watch.see(t=None, u=None, v=None) == [told("g", v=None)]


def test_a_group_without_offsets_is_forgotten() -> None:
    watch = Watch()
    watch.commit("g", "t", OLD)
    watch.forget("g", "t")
    watch.forget("g", "never")
    assert watch.offsets.names() == set()
    assert [watch.see(t=None) for _ in range(3)] == [[]] * 3
