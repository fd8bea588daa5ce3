"""The topic watcher and patterns whose topics members' gateways filter (rows RA2, RA5): it reports no topic
that the group does not know by a look, and a digest by which the group learns that there are others.
"""

from uuid import UUID

import pytest

from records import topic_patterns
from records.topic_patterns import digest
from state.kafka.requests import RegexResolution, RegexResolved
from state.kafka.topic_images import TopicImage
from streaming.service.topic_watch.group_topics import ClusterTopics, Message
from streaming.service.topic_watch.resend import FIRST_PAUSE_S
from tests.unit.streaming.test_group_topics import OLD, OTHER, Watch, told

HIDDEN = TopicImage(UUID(int=9), 1)
SEEN = digest(["hidden", "t"])


def watching() -> Watch:
    """A group whose members' gateways saw `hidden` and left it out."""
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={".*": ["t"]}, checked={".*": SEEN})
    return watch


def resolved(watch: Watch, seen: str, **topics: TopicImage) -> RegexResolved:
    result = RegexResolution(topics, round(watch.now_s * 1000), seen=seen)
    return RegexResolved(group_id="g", patterns={".*": result})


def test_a_group_whose_gateways_saw_all_topics_gets_nothing() -> None:
    watch = watching()
    assert [watch.see(t=OLD, hidden=HIDDEN) for _ in range(5)] == [[]] * 5


def test_a_new_topic_is_told_by_the_digest_and_not_by_its_name() -> None:
    watch = watching()
    messages = watch.see(t=OLD, hidden=HIDDEN, new=OTHER)
    assert messages == [resolved(watch, digest(["hidden", "new", "t"]), t=OLD)]


def test_what_is_told_is_told_again_later_until_a_gateway_has_looked() -> None:
    watch = watching()
    looks = [(watch.now_s, m) for _ in range(20) if (m := watch.see(t=OLD, hidden=HIDDEN, new=OTHER))]
    assert [at_s - looks[0][0] for at_s, _ in looks][:2] == [0, FIRST_PAUSE_S]
    seen = digest(["hidden", "new", "t"])
    watch.publish("g", {"t": OLD}, resolved={".*": ["t"]}, checked={".*": seen})
    assert [watch.see(t=OLD, hidden=HIDDEN, new=OTHER) for _ in range(100)] == [[]] * 100


def test_a_deleted_topic_goes_when_two_looks_in_a_row_do_not_show_it() -> None:
    watch = watching()
    watch.see(t=OLD, hidden=HIDDEN)
    assert watch.see(hidden=HIDDEN, t=None) == []
    gone = watch.see(hidden=HIDDEN, t=None)
    assert gone == [told("g", t=None), resolved(watch, digest(["hidden"]))]


def test_a_topic_that_a_broker_cannot_show_for_a_moment_changes_nothing() -> None:
    watch = watching()
    watch.see(t=OLD, hidden=HIDDEN)
    assert [watch.see("t", hidden=HIDDEN), watch.see(t=OLD, hidden=HIDDEN)] == [[], []]


def test_a_topic_that_the_coordinator_may_not_describe_is_kept() -> None:
    """The brokers list it to the gateway only, and tell the coordinator nothing about it by its name. So the
    digests differ. The watcher sends its digest again, after pauses that grow.
    """
    watch = watching()
    records = [m for _ in range(1_000) for m in watch.see(hidden=HIDDEN)]
    assert [m.patterns[".*"].topics for m in records if isinstance(m, RegexResolved)] == [{"t": OLD}] * 8
    assert len(records) == 8


def test_a_topic_that_was_gone_before_a_start_is_left_out() -> None:
    watch = Watch()
    watch.publish("g", {"t": None}, resolved={".*": ["t"]}, checked={".*": SEEN})
    (message,) = watch.see(hidden=HIDDEN, t=None)
    assert message == resolved(watch, digest(["hidden"]))


def test_a_group_that_waits_for_a_look_waits_for_nothing_of_the_watcher() -> None:
    watch = Watch()
    watch.publish("g", checked={".*": ""})
    assert not watch.groups.is_waiting
    assert [watch.see(t=OLD) for _ in range(3)] == [[]] * 3
    watch.publish("g", {"t": OLD}, resolved={".*": ["t"]}, checked={".*": ""})
    assert [watch.see(t=OLD, new=OTHER) for _ in range(3)] == [[]] * 3


def test_other_patterns_of_the_group_are_resolved_as_ever() -> None:
    watch = Watch()
    watch.publish("g", {"t": OLD}, resolved={".*": ["t"], "n.*": []}, checked={".*": digest(["t"])})
    (message,) = watch.see(t=OLD, new=OTHER)
    at_ms = round(watch.now_s * 1000)
    assert message == RegexResolved(
        group_id="g",
        patterns={
            ".*": RegexResolution({"t": OLD}, at_ms, seen=digest(["new", "t"])),
            "n.*": RegexResolution({"new": OTHER}, at_ms),
        },
    )


def test_a_pattern_that_takes_too_long_keeps_its_topics_and_its_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = watching()
    assert watch.see(t=OLD, hidden=HIDDEN) == []
    monkeypatch.setattr(topic_patterns, "MATCHING_MAX_S", 0.0)
    assert watch.see(t=OLD, hidden=HIDDEN, new=OTHER) == []


def test_topics_that_brokers_mark_as_internal_match_no_pattern() -> None:
    """As at the gateway, or the digests would differ for ever."""
    watch = watching()
    images: dict[str, TopicImage | None] = {"t": OLD, "hidden": HIDDEN, "marked": OTHER}
    names = frozenset(images)

    def see() -> list[Message]:
        watch.now_s += 5
        return watch.groups.see(ClusterTopics(images, names, 1, frozenset({"marked"})), watch.now_s)

    assert [see() for _ in range(3)] == [[]] * 3
