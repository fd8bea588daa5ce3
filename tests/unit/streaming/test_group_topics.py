"""The topic watcher's decisions for consumer groups (rows MI4, MI5, MI16 to MI19, RX5): the records for
groups, given the groups topic and polls of the cluster.
"""

from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import UNSET, structs

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import RegexResolution, RegexResolved, TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.kafka.snapshot import ConsumerGroupSnapshot, TopicSnapshot
from kafka_why.contract.kafka.streams_responses import (
    StreamsGroupHeartbeat,
    StreamsTopicInfo,
    StreamsTopology,
    Subtopology,
)
from records.truncation import AWAITED_MAX, encode_view
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.group import Topic
from state.kafka.protocols import view_of
from state.kafka.streams_group import StreamsGroup
from state.rocketmq.group import RocketMqGroup
from state.rocketmq.protocol import snapshot as rocketmq_snapshot
from state.timeline import Row, Timeline
from streaming.service.topic_watch import group_topics
from streaming.service.topic_watch.group_topics import (
    RESOLUTIONS_APART_S,
    ClusterTopics,
    GroupTopics,
    GroupUpdate,
)
from streaming.service.topic_watch.offset_topics import FIRST_PAUSE_S, LONGEST_PAUSE_S

OLD, NEW, GROWN = TopicImage(UUID(int=1), 4), TopicImage(UUID(int=2), 4), TopicImage(UUID(int=1), 6)
OTHER, FAILS = TopicImage(UUID(int=3), 1), TopicImage(UUID(int=0), 0)


class Watch:
    """Views that groups publish, and a poll of the cluster every 5 s."""

    def __init__(self, poll_max_s: float = 60.0) -> None:
        self.groups = GroupTopics({"coordinator-requests"}, poll_max_s=poll_max_s)
        self.now_s = 0.0

    def publish(
        self,
        group_id: str,
        topics: dict[str, TopicImage | None] | None = None,
        *,
        unknown: tuple[str, ...] = (),
        resolved: dict[str, list[str]] | None = None,
        unresolved: tuple[str, ...] = (),
        checked: dict[str, str] | None = None,
    ) -> None:
        known = {
            name: None if image is None else TopicSnapshot(str(image.id), image.partitions)
            for name, image in (topics or {}).items()
        }
        consumer = ConsumerGroupSnapshot(
            assignment_epoch=3,
            assignor_name="uniform",
            topics=known,
            resolved_regexes=resolved or {},
            unknown_topics=list(unknown),
            unresolved_regexes=list(unresolved),
            checked_regexes=checked or UNSET,
        )
        view = structs.replace(view_of(ConsumerGroup(group_id=group_id, incarnation="i")), consumer=consumer)
        self.groups.apply(group_id.encode(), encode(view))

    def see(self, **images: TopicImage | None) -> list[GroupUpdate]:
        """Return a poll that shows these topics. FAILS is the image of a topic with an error."""
        self.now_s += 5
        listed = frozenset(name for name, image in images.items() if image is not None)
        images = {name: image for name, image in images.items() if image is not FAILS}
        at_ms = round(self.now_s * 1000)
        return self.groups.compare(
            ClusterTopics(images, listed if self.groups.has_patterns() else None, at_ms), self.now_s
        )

    def resolved(self, group_id: str, pattern: str, **topics: TopicImage) -> RegexResolved:
        resolution = RegexResolution(topics, round(self.now_s * 1000))
        return RegexResolved(group_id=group_id, patterns={pattern: resolution})


def told(group_id: str, **images: TopicImage | None) -> TopicMetadata:
    return TopicMetadata(group_id=group_id, topics=images)


def at(poll: int, patterns: dict[str, dict[str, TopicImage]]) -> RegexResolved:
    """Return the results of patterns of group g at this poll."""
    found = {pattern: RegexResolution(topics, 5_000 * poll) for pattern, topics in patterns.items()}
    return RegexResolved(group_id="g", patterns=found)


Images = dict[str, TopicImage | None]


@pytest.mark.parametrize(
    ("view", "polls", "sent"),
    [
        pytest.param(
            {"topics": {"t": OLD, "u": None}, "resolved": {"t.*": ["t"]}},
            [{"t": OLD, "u": None}] * 5,
            [[]] * 5,
            id="nothing has changed",
        ),
        pytest.param(
            {"topics": {"t": OLD}},
            [{"t": GROWN}, {"t": OLD}],
            [[told("g", t=GROWN)], []],
            id="growth at once",
        ),
        pytest.param({"topics": {"t": GROWN}}, [{"t": OLD}] * 2, [[], []], id="fewer partitions never"),
        pytest.param(
            {"topics": {"u": None}, "unknown": ("t",)},
            [{"t": OLD, "u": OTHER}],
            [[told("g", u=OTHER, t=OLD)]],
            id="a new topic at once",
        ),
        pytest.param(
            {"unknown": ("t",)},
            [{"t": None}] * 2,
            [[], [told("g", t=None)]],
            id="a name that no topic has at the second poll",
        ),
        pytest.param(
            {"topics": {"t": OLD}},
            [{"t": None}, {"t": OLD}, {"t": None}, {}, {"t": None}, {"t": None}],
            [[], [], [], [], [], [told("g", t=None)]],
            id="deletion at the second poll in a row",
        ),
        pytest.param(
            {"topics": {"t": OLD}},
            [{"t": NEW}, {"t": OLD}, {"t": NEW}, {"t": NEW}],
            [[], [], [], [told("g", t=NEW)]],
            id="another id at the second poll in a row",
        ),
        pytest.param(
            {"unresolved": ("t.*",)},
            [{"t": OLD, "u": OTHER, "coordinator-requests": OTHER}],
            [[at(1, {"t.*": {"t": OLD}})]],
            id="a pattern without a result at once",
        ),
        pytest.param(
            {"topics": {"t": OLD}, "resolved": {".*": ["t"]}},
            [{"t": OLD, "coordinator-requests": OTHER, "__consumer_offsets": OTHER}],
            [[]],
            id="internal topics match no pattern",
        ),
        pytest.param(
            {"topics": {"t": OLD}, "resolved": {"t": ["t"], "u": []}},
            [{"t": OLD, "u": OTHER}],
            [[at(1, {"t": {"t": OLD}, "u": {"u": OTHER}})]],
            id="all patterns of a group together",
        ),
        pytest.param(
            {"topics": {"t": OLD, "tt": OTHER}, "resolved": {"t+": ["t", "tt"]}},
            [{"t": OLD, "tt": None}, {"t": OLD, "tt": OTHER}, *[{"t": OLD, "tt": None}] * 2],
            [[], [], [], [told("g", tt=None), at(4, {"t+": {"t": OLD}})]],
            id="a result loses a topic at the second poll in a row",
        ),
        pytest.param(
            {"topics": {"t": OLD, "tt": OTHER}, "resolved": {"t+": ["t", "tt"]}},
            [{"t": OLD, "tt": FAILS}, {"t": OLD, "tt": FAILS}, {"t": OLD, "tt": FAILS, "ttt": NEW}],
            [[], [], [at(3, {"t+": {"t": OLD, "tt": OTHER, "ttt": NEW}})]],
            id="a topic that a broker cannot show stays in a result",
        ),
        pytest.param(
            {"topics": {"t": OLD}, "resolved": {"t+": ["t"]}},
            [{"t": NEW, "tt": OTHER}],
            [[at(1, {"t+": {"t": OLD, "tt": OTHER}})]],
            id="a result keeps an id at the first poll",
        ),
    ],
)
def test_group_is_sent_the_metadata_that_its_view_lacks(
    view: dict[str, Any], polls: list[Images], sent: list[list[GroupUpdate]]
) -> None:
    watch = Watch()
    watch.publish("g", **view)
    assert watch.groups.is_waiting == ({"unknown", "unresolved"} & view.keys() != set())
    found = [watch.see(**images) for images in polls]
    assert found == sent
    for message in (message for messages in found for message in messages):
        assert msgspec.json.decode(encode(message))["type"] == type(message).__name__


def test_classic_and_rocketmq_groups_are_sent_no_topics() -> None:
    watch = Watch()
    watch.publish("deleted", {"t": OLD}, resolved={".*": ["t"]})
    watch.groups.apply(b"classic", encode(view_of(ClassicGroup(group_id="classic", incarnation="i"))))
    watch.groups.apply(
        b"rocketmq", encode(rocketmq_snapshot(RocketMqGroup(group_id="rocketmq", incarnation="i")))
    )
    watch.groups.apply(b"deleted", None)
    assert (watch.groups.names(), watch.groups.has_patterns()) == (set(), False)
    assert [watch.see(t=GROWN) for _ in range(3)] == [[]] * 3


def test_streams_group_is_sent_required_topics_that_change() -> None:
    """Row KSQ3. Its view has the source and internal topics, also those that are missing."""
    changelog = StreamsTopicInfo(name="s")
    subtopology = Subtopology(subtopology_id="0", source_topics=["t"], state_changelog_topics=[changelog])
    joins = StreamsGroupHeartbeat(
        group_id="g",
        correlation_id="c",
        reply_partition=0,
        api_version=1,
        client_id="me",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1,
        topology=StreamsTopology(0, [subtopology]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
        topics={"t": OLD, "s": None},
    )
    timeline = Timeline("g", None, CoordinatorConfig())
    timeline.apply(Row(1, "requests-0-0", joins))
    assert isinstance(timeline.group, StreamsGroup)
    watch = Watch()
    watch.groups.apply(b"g", encode(view_of(timeline.group)))
    assert watch.groups.names() == {"t", "s"}
    assert watch.see(t=OLD, s=None) == []
    assert watch.see(t=GROWN, s=OTHER) == [told("g", t=GROWN, s=OTHER)]


def test_a_classic_group_gets_the_topics_that_its_conversion_waits_for() -> None:
    """Row MI14."""
    watch = Watch()
    group = ClassicGroup(group_id="g", incarnation="i", wanted_topics=["t"])
    watch.groups.apply(b"g", encode(view_of(group)))
    assert watch.groups.is_waiting
    assert watch.see(t=OLD) == [told("g", t=OLD)]
    group.wanted_topics = []
    watch.groups.apply(b"g", encode(view_of(group)))
    assert watch.see(t=GROWN) == []


def test_pattern_results_of_a_group_are_spaced_in_time() -> None:
    watch = Watch()
    watch.publish("g", resolved={"t.*": []})
    images: dict[str, TopicImage | None] = {}
    times = []
    for number in range(100):
        images[f"t{number}"] = TopicImage(UUID(int=number), 1)
        if watch.see(**images):
            times.append(watch.now_s)
            known = {n: image for n, image in images.items() if image is not None}
            watch.publish("g", {**known}, resolved={"t.*": sorted(known)})
    assert len(times) > 10
    assert min(after - before for before, after in pairwise(times)) == RESOLUTIONS_APART_S


def test_unanswered_metadata_is_resent_with_growing_pauses() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={"u": []})
    polls = [(watch.now_s, m) for _ in range(3_000) if (m := watch.see(t=GROWN, u=OTHER))]
    pauses = [after - before for (before, _), (after, _) in pairwise(polls)]
    assert all([type(m) for m in messages] == [TopicMetadata, RegexResolved] for _, messages in polls)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_unsent_metadata_is_sent_after_the_next_poll() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, unresolved=("t",))
    messages = watch.see(t=GROWN)
    watch.groups.not_sent(messages)
    again = watch.see(t=GROWN)
    assert again == [told("g", t=GROWN), watch.resolved("g", "t", t=GROWN)]


def test_poll_sends_metadata_to_a_limited_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_topics, "GROUPS_AT_ONCE", 2)
    watch = Watch()
    for group_id in "abcde":
        watch.publish(group_id, {"t": OLD})
    polls = [[message.group_id for message in watch.see(t=GROWN)] for _ in range(4)]
    assert polls == [["a", "b"], ["c", "d"], ["e"], []]


def test_topics_beyond_the_time_of_a_poll_are_compared_in_later_polls() -> None:
    watch = Watch(poll_max_s=0.0)
    for number in range(5):
        watch.publish(f"g{number}", unresolved=(f"t{number}",))
    watch.publish("named", unknown=("t0",))
    images = {f"t{number}": TopicImage(UUID(int=number + 1), 1) for number in range(5)}
    messages: list[GroupUpdate] = []
    while watch.groups.is_waiting:
        messages += watch.see(**images)
        assert watch.now_s < 5 * 50, "the polls come to an end"
    assert watch.now_s > 5 * 5, "no poll has time for all"
    messages += [message for _ in range(6) for message in watch.see(**images)]
    results = {m.group_id: list(m.patterns) for m in messages if isinstance(m, RegexResolved)}
    assert results == {f"g{number}": [f"t{number}"] for number in range(5)}
    assert told("named", t0=images["t0"]) in messages


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
