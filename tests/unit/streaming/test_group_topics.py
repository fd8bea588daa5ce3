"""The topic watcher's decisions for consumer groups (rows MI4, MI5, MI16 to MI19, RX5): the records for
groups, given the groups topic and looks at the cluster.
"""

import sys
from collections.abc import Collection, Iterable
from itertools import pairwise
from uuid import UUID

import msgspec
import pytest
from msgspec import UNSET, structs

from records import topic_patterns
from records.codec import encode
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.protocols import view_of
from state.kafka.requests import RegexResolution, RegexResolved, TopicMetadata
from state.kafka.snapshot import ConsumerGroupSnapshot, TopicSnapshot
from state.kafka.topic_images import TopicImage
from state.rocketmq.group import Group as RocketMqGroup
from state.rocketmq.snapshot import snapshot as rocketmq_snapshot
from streaming.service.topic_watch import group_topics, pattern_matches
from streaming.service.topic_watch.group_topics import (
    RESOLUTIONS_APART_S,
    ClusterTopics,
    GroupTopics,
    Message,
)
from streaming.service.topic_watch.resend import FIRST_PAUSE_S, LONGEST_PAUSE_S

OLD, NEW, GROWN = TopicImage(UUID(int=1), 4), TopicImage(UUID(int=2), 4), TopicImage(UUID(int=1), 6)
OTHER = TopicImage(UUID(int=3), 1)


class Watch:
    """Views that groups publish, and a look at the cluster every 5 s."""

    def __init__(self, look_max_s: float = 60.0) -> None:
        self.groups = GroupTopics({"coordinator-requests"}, look_max_s=look_max_s)
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

    def see(self, *errors: str, **images: TopicImage | None) -> list[Message]:
        """A look that shows these topics, and topics with errors."""
        self.now_s += 5
        listed = frozenset((*(n for n, image in images.items() if image is not None), *errors))
        at_ms = round(self.now_s * 1000)
        return self.groups.see(
            ClusterTopics(images, listed if self.groups.has_patterns() else None, at_ms), self.now_s
        )

    def resolved(self, group_id: str, pattern: str, **topics: TopicImage) -> RegexResolved:
        resolution = RegexResolution(topics, round(self.now_s * 1000))
        return RegexResolved(group_id=group_id, patterns={pattern: resolution})


def told(group_id: str, **images: TopicImage | None) -> TopicMetadata:
    return TopicMetadata(group_id=group_id, topics=images)


def test_groups_that_know_their_topics_get_nothing() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD, "u": None}, resolved={"t.*": ["t"]})
    assert watch.groups.names() == {"t", "u"}
    assert [watch.see(t=OLD, u=None) for _ in range(5)] == [[]] * 5


def test_classic_groups_and_groups_of_rocketmq_cost_nothing() -> None:
    watch = Watch()
    watch.publish("deleted", {"t": OLD}, resolved={".*": ["t"]})
    watch.groups.apply(b"classic", encode(view_of(ClassicGroup(group_id="classic", incarnation="i"))))
    watch.groups.apply(
        b"rocketmq", encode(rocketmq_snapshot(RocketMqGroup(group_id="rocketmq", incarnation="i")))
    )
    watch.groups.apply(b"deleted", None)
    assert (watch.groups.names(), watch.groups.has_patterns()) == (set(), False)
    assert [watch.see(t=GROWN) for _ in range(3)] == [[]] * 3


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


def test_more_partitions_are_told_at_once_and_fewer_never() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD})
    watch.publish("h", {"t": GROWN})
    assert watch.see(t=GROWN) == [told("g", t=GROWN)]
    assert watch.see(t=OLD) == []


def test_a_topic_that_is_new_to_the_group_is_told_at_once() -> None:
    watch = Watch()
    watch.publish("g", {"u": None}, unknown=("t",))
    assert watch.groups.is_waiting
    assert watch.see(t=OLD, u=OTHER) == [told("g", u=OTHER, t=OLD)]
    assert not watch.groups.is_waiting


def test_a_name_that_no_topic_has_is_told_when_two_looks_in_a_row_show_none() -> None:
    watch = Watch()
    watch.publish("g", unknown=("t",))
    assert [watch.see(t=None), watch.see(t=None)] == [[], [told("g", t=None)]]


def test_a_topic_is_deleted_when_two_looks_in_a_row_do_not_show_it() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD})
    looks = [watch.see(t=None), watch.see(t=OLD), watch.see(t=None), watch.see(), watch.see(t=None)]
    assert looks == [[]] * 5, "neither one look alone, nor two with one between that does not know"
    assert watch.see(t=None) == [told("g", t=None)]


def test_a_topic_has_another_id_when_two_looks_in_a_row_show_it() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD})
    assert [watch.see(t=NEW), watch.see(t=OLD), watch.see(t=NEW), watch.see(t=NEW)] == [
        [],
        [],
        [],
        [told("g", t=NEW)],
    ]


def test_a_pattern_without_a_result_is_resolved_at_once() -> None:
    watch = Watch()
    watch.publish("g", unresolved=("t.*",))
    assert watch.groups.is_waiting
    messages = watch.see(t=OLD, u=OTHER, **{"coordinator-requests": OTHER})
    assert messages == [watch.resolved("g", "t.*", t=OLD)]


def test_internal_topics_match_no_pattern() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={".*": ["t"]})
    assert watch.see(t=OLD, **{"coordinator-requests": OTHER, "__consumer_offsets": OTHER}) == []


def test_all_patterns_of_a_group_are_resolved_together() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={"t": ["t"], "u": []})
    assert watch.see(t=OLD, u=OTHER) == [
        RegexResolved(
            group_id="g",
            patterns={"t": RegexResolution({"t": OLD}, 5_000), "u": RegexResolution({"u": OTHER}, 5_000)},
        )
    ]


def test_a_result_loses_a_topic_when_two_looks_in_a_row_do_not_show_it() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD, "tt": OTHER}, resolved={"t+": ["t", "tt"]})
    assert watch.see(t=OLD, tt=None) == [], "the first look after a start"
    assert watch.see(t=OLD, tt=OTHER) == []
    assert watch.see(t=OLD, tt=None) == []
    assert watch.see(t=OLD, tt=None) == [told("g", tt=None), watch.resolved("g", "t+", t=OLD)]


def test_a_topic_that_a_broker_cannot_show_stays_in_a_result() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD, "tt": OTHER}, resolved={"t+": ["t", "tt"]})
    assert [watch.see("tt", t=OLD) for _ in range(5)] == [[]] * 5
    messages = watch.see("tt", t=OLD, ttt=NEW)
    assert messages == [watch.resolved("g", "t+", t=OLD, tt=OTHER, ttt=NEW)]


def test_a_result_shows_another_id_only_when_two_looks_in_a_row_show_it() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={"t+": ["t"]})
    assert watch.see(t=NEW, tt=OTHER) == [watch.resolved("g", "t+", t=OLD, tt=OTHER)]


def test_results_of_a_group_are_some_time_apart() -> None:
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


def test_a_pattern_that_re2_does_not_know_is_told_with_its_error() -> None:
    watch = Watch()
    watch.publish("g", unresolved=("(",))
    message = watch.see(t=OLD)[0]
    assert isinstance(message, RegexResolved)
    assert message.patterns["("].error
    assert message.patterns["("].topics == {}


def test_a_group_that_does_not_follow_gets_its_records_again_after_a_pause_that_grows() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={"u": []})
    looks = [(watch.now_s, m) for _ in range(3_000) if (m := watch.see(t=GROWN, u=OTHER))]
    pauses = [after - before for (before, _), (after, _) in pairwise(looks)]
    assert all([type(m) for m in messages] == [TopicMetadata, RegexResolved] for _, messages in looks)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_what_could_not_be_sent_is_sent_after_the_next_look() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, unresolved=("t",))
    messages = watch.see(t=GROWN)
    watch.groups.not_sent(messages)
    again = watch.see(t=GROWN)
    assert again == [told("g", t=GROWN), watch.resolved("g", "t", t=GROWN)]


def test_a_look_touches_no_more_groups_than_the_query_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_topics, "GROUPS_AT_ONCE", 2)
    watch = Watch()
    for group_id in "abcde":
        watch.publish(group_id, {"t": OLD})
    looks = [[message.group_id for message in watch.see(t=GROWN)] for _ in range(4)]
    assert looks == [["a", "b"], ["c", "d"], ["e"], []]


def test_every_record_can_be_sent() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, unresolved=("t",))
    messages = watch.see(t=GROWN)
    assert messages == [told("g", t=GROWN), watch.resolved("g", "t", t=GROWN)]
    for message in messages:
        assert msgspec.json.decode(encode(message))["type"] == type(message).__name__


def test_a_pattern_that_had_a_result_keeps_it_when_matching_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the members would lose their partitions when the cluster gets more topics."""
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={"t.*": ["t"]})
    assert watch.see(t=OLD) == []
    monkeypatch.setattr(topic_patterns, "MATCHING_MAX_S", 0.0)
    assert watch.see(t=OLD, t2=OTHER) == []


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Return the list of the patterns that were matched, each with the names that it was matched with."""
    calls: list[tuple[str, list[str]]] = []

    def noted(pattern: str, topics: Iterable[str], internal: Collection[str] = ()) -> list[str]:
        calls.append((pattern, sorted(topics)))
        return topic_patterns.matching(pattern, topics, internal)

    monkeypatch.setattr(pattern_matches, "matching", noted)
    return calls


def test_patterns_that_no_group_has_any_more_are_not_kept(matched: list[tuple[str, list[str]]]) -> None:
    watch = Watch()
    watch.publish("g", unresolved=("t",))
    watch.see(t=OLD)
    watch.publish("g", {"t": OLD}, resolved={"t": ["t"]}, unresolved=("t2",))
    watch.see(t=OLD)
    assert matched == [("t", ["t"]), ("t2", ["t"])]
    watch.publish("g", {"t": OLD}, resolved={"t2": []})
    watch.see(t=OLD)
    assert matched == [("t", ["t"]), ("t2", ["t"])]
    watch.publish("g", {"t": OLD}, resolved={"t2": []}, unresolved=("t",))
    watch.see(t=OLD)
    assert matched == [("t", ["t"]), ("t2", ["t"]), ("t", ["t"])]


def test_a_pattern_of_many_groups_is_matched_once_and_later_with_new_topics_alone(
    matched: list[tuple[str, list[str]]],
) -> None:
    watch = Watch()
    for group_id in "abc":
        watch.publish(group_id, {"t": OLD}, resolved={"t.*": ["t"]})
    assert [watch.see(t=OLD), watch.see(t=OLD)] == [[], []]
    assert watch.see(t=OLD, tt=OTHER) == [
        watch.resolved(group_id, "t.*", t=OLD, tt=OTHER) for group_id in "abc"
    ]
    assert matched == [("t.*", ["t"]), ("t.*", ["tt"])]


def test_groups_are_compared_when_their_view_or_their_topics_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    class Noted(GroupTopics):
        def _check_group(self, group_id: str, cluster: ClusterTopics) -> bool:
            compared.append(group_id)
            return super()._check_group(group_id, cluster)

    monkeypatch.setattr(sys.modules[__name__], "GroupTopics", Noted)
    watch = Watch()
    watch.publish("g", {"t": OLD})
    watch.publish("h", {"u": OTHER}, resolved={"u.*": ["u"]})
    looks = []
    for images in (
        {"t": OLD, "u": OTHER},
        {"t": OLD, "u": OTHER},
        {"t": OLD, "u": OTHER},
        {"t": GROWN, "u": OTHER},
        {"t": GROWN, "u": OTHER, "uu": OTHER},
    ):
        compared.clear()
        watch.see(**images)
        looks.append(sorted(compared))
    # Until the second look nothing is known of what came before; a group that needs a record stays marked.
    assert looks == [["g", "h"], ["g", "h"], [], ["g"], ["g", "h"]]


def test_a_look_without_time_takes_a_step_and_the_next_looks_go_on() -> None:
    watch = Watch(look_max_s=0.0)
    for number in range(5):
        watch.publish(f"g{number}", unresolved=(f"t{number}",))
    watch.publish("named", unknown=("t0",))
    images = {f"t{number}": TopicImage(UUID(int=number + 1), 1) for number in range(5)}
    messages: list[Message] = []
    while watch.groups.is_waiting:
        messages += watch.see(**images)
        assert watch.now_s < 5 * 50, "the looks come to an end"
    assert watch.now_s > 5 * 5, "no look has time for all"
    messages += [message for _ in range(6) for message in watch.see(**images)]
    results = {m.group_id: list(m.patterns) for m in messages if isinstance(m, RegexResolved)}
    assert results == {f"g{number}": [f"t{number}"] for number in range(5)}
    assert told("named", t0=images["t0"]) in messages


def test_a_deleted_topic_is_seen_by_groups_that_were_left_for_a_later_look() -> None:
    watch = Watch(look_max_s=0.0)
    for group_id in "abcd":
        watch.publish(group_id, {"t": OLD})
    while watch.groups.is_waiting:
        watch.see(t=OLD)
    messages = [message for _ in range(6) for message in watch.see(t=None)]
    assert sorted(message.group_id for message in messages) == ["a", "b", "c", "d"]
