"""The target assignment: rows TA1 to TA32, with groups that are made by hand."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from state.config import CoordinatorConfig
from state.kafka.consumer.target import maybe_update_target, preferred_assignor
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from state.kafka.context import StepContext
from state.kafka.effects import Effects
from state.kafka.group import Topic
from state.kafka.modern.room import has_room
from state.kafka.modern.wording import listed
from state.kafka.modern_group import Partitions
from state.kafka.topic_images import TopicImage, TopicImages

T, U, V = b"t" * 16, b"u" * 16, b"v" * 16
NOW_MS = 1_000_000
CONFIG = CoordinatorConfig()


def make_group(members: dict[str, dict[str, Any]], **fields: Any) -> ConsumerGroup:
    """A group one epoch ahead of its target, with the topics t (6 partitions), u (2) and v (1)."""
    made = {
        member_id: ConsumerMember(member_id, **({"subscribed_topic_names": ["t"]} | member))
        for member_id, member in members.items()
    }
    topics = {"t": Topic(T, 6), "u": Topic(U, 2), "v": Topic(V, 1), "gone": None}
    usual: dict[str, Any] = {"group_epoch": 3, "assignment_epoch": 2, "members": made, "topics": topics}
    return ConsumerGroup(group_id="g", incarnation="i", **(usual | fields))


def update(group: ConsumerGroup, config: CoordinatorConfig = CONFIG) -> Effects:
    context = StepContext(group, "g", "cause", NOW_MS, config)
    maybe_update_target(context)
    return context.effects()


def sizes(target: dict[str, Partitions]) -> dict[str, int]:
    return {member_id: sum(map(len, has.values())) for member_id, has in target.items()}


def test_the_last_target_holds_while_the_group_has_not_changed() -> None:
    group = make_group({"a": {}}, group_epoch=2, target={"a": {T: [0]}})
    assert (update(group).rules, group.target) == (["TA1"], {"a": {T: [0]}})


@pytest.mark.parametrize(
    ("computed_ms", "interval_ms", "own", "is_due"),
    [
        (0, 1_000, {}, True),
        (NOW_MS - 999, 1_000, {}, False),
        (NOW_MS - 1_000, 1_000, {}, True),
        (NOW_MS, 0, {}, True),
        (NOW_MS - 1_000, 1_000, {"consumer.assignment.interval.ms": 1_001}, False),
        (NOW_MS, 1_000, {"consumer.assignment.interval.ms": 0}, True),
    ],
)
def test_the_target_is_computed_after_the_interval(
    computed_ms: int, interval_ms: int, own: dict[str, int], is_due: bool
) -> None:
    group = make_group({"a": {}}, assignment_timestamp_ms=computed_ms, configs=own)
    effects = update(group, replace(CONFIG, group_consumer_assignment_interval_ms=interval_ms))
    assert effects.rules == ["TA3" if is_due else "TA2"]
    assert group.assignment_epoch == (3 if is_due else 2)
    assert group.assignment_timestamp_ms == (NOW_MS if is_due else computed_ms)


def test_one_computation_covers_all_changes_since_the_last() -> None:
    group = make_group(
        {"a": {}, "b": {}, "c": {"subscribed_topic_names": []}},
        group_epoch=7,
        target={"a": {T: [0, 1, 2, 3, 4]}, "b": {}},
    )
    [entry] = update(group).history
    assert group.target == {"a": {T: [0, 1, 2]}, "b": {T: [3, 4, 5]}, "c": {}}
    assert (group.assignment_epoch, entry.assignment_epoch, entry.generation) == (7, 7, 7)
    assert (entry.rule, entry.assignor_name, entry.moved_partitions) == ("TA3", "uniform", 2)
    assert entry.targets == {"a": {"t": [0, 1, 2]}, "b": {"t": [3, 4, 5]}, "c": {}}
    assert entry.to_state == "Reconciling"
    assert entry.reason == (
        "uniform computed the target of epoch 7 from that of 2: "
        "2 partitions move to another member, and 1 had no member"
    )


def test_the_words_about_a_target_are_in_the_singular_for_one_partition() -> None:
    group = make_group({"a": {}, "b": {}}, group_epoch=3, target={"a": {T: [0, 1, 2, 3]}, "b": {T: [4, 5]}})
    [entry] = update(group).history
    assert entry.reason.endswith(": 1 partition moves to another member, and 0 had no member")
    texts = [str(number) for number in range(12)]
    assert listed(texts[:11], "topic") == ", ".join(texts[:10]) + " and 1 more topic"
    assert listed(texts, "topic") == ", ".join(texts[:10]) + " and 2 more topics"


def test_the_history_has_only_the_targets_that_change() -> None:
    group = make_group(
        {"a": {}, "b": {"subscribed_topic_names": ["u"]}}, target={"a": {T: list(range(6))}, "b": {}}
    )
    [entry] = update(group).history
    assert entry.targets == {"b": {"u": [0, 1]}}


@pytest.mark.parametrize(
    ("asked", "configured", "preferred"),
    [
        ([None, None], ("uniform", "range"), "uniform"),
        ([None, None], ("range", "uniform"), "range"),
        ([None, "range", None], ("uniform", "range"), "range"),
        (["range", "uniform"], ("uniform", "range"), "uniform"),
        (["range", "uniform"], ("range", "uniform"), "range"),
        (["range", "range", "uniform"], ("uniform", "range"), "range"),
        (["range", "range", None], ("uniform",), "uniform"),
    ],
)
def test_the_members_vote_for_an_assignor(
    asked: list[str | None], configured: tuple[str, ...], preferred: str
) -> None:
    group = make_group({f"m{n}": {"server_assignor": name} for n, name in enumerate(asked)})
    config = replace(CONFIG, group_consumer_assignors=configured)
    assert preferred_assignor(group, config) == preferred
    update(group, config)
    assert group.target_assignor == preferred


def test_range_deals_to_static_members_first_and_keeps_numbers_together() -> None:
    names = {"subscribed_topic_names": ["t", "u"], "server_assignor": "range"}
    group = make_group(
        {"a": names, "z": names | {"instance_id": "i"}},
        topics={"t": Topic(T, 3), "u": Topic(U, 3)},
        target={"a": {T: [0, 1], U: [0, 1]}},
    )
    update(group)
    assert group.target == {"z": {T: [0, 1], U: [0, 1]}, "a": {T: [2], U: [2]}}


def test_a_topic_that_was_created_again_starts_afresh() -> None:
    old = b"o" * 16
    group = make_group({"a": {}, "b": {}}, target={"a": {old: [0]}, "b": {old: [1, 2, 3, 4, 5], U: [0]}})
    [entry] = update(group).history
    assert sizes(group.target) == {"a": 3, "b": 3}
    assert {id_ for has in group.target.values() for id_ in has} == {T}
    assert entry.moved_partitions == 0


def test_a_member_gets_the_topics_that_its_pattern_matches() -> None:
    group = make_group(
        {
            "a": {"subscribed_topic_names": ["u"], "subscribed_topic_regex": "v|gone"},
            "b": {"subscribed_topic_names": [], "subscribed_topic_regex": "unresolved"},
        },
        resolved_regexes={"v|gone": ResolvedRegex(["gone", "v"], 1)},
    )
    update(group)
    assert group.target == {"a": {U: [0, 1], V: [0]}, "b": {}}


def test_topics_beyond_the_limit_are_left_out() -> None:
    """Row TA32: t has 6 partitions, u 2, v 1."""
    group = make_group({"a": {"subscribed_topic_names": ["t", "u", "v"]}})
    effects = update(group, replace(CONFIG, group_max_partitions=7))
    assert group.target == {"a": {T: [0, 1, 2, 3, 4, 5], V: [0]}}
    assert effects.rules == ["TA32", "TA3"]
    assert effects.history[0].reason.endswith("; topics beyond group.max.partitions=7 are left out: u")


@pytest.mark.parametrize(
    ("member_id", "topics", "most", "room"),
    [
        ("new", {"u"}, 8, True),
        ("new", {"u"}, 7, False),
        ("new", {"t"}, 5, True),  # t has grown above the limit already
        ("new", {"missing", "gone"}, 6, True),
        ("a", {"t"}, 5, True),
        ("a", {"u"}, 2, True),  # nobody subscribes to t any more
        ("a", {"new"}, 3, True),
        ("a", {"new"}, 2, False),
    ],
)
def test_a_member_may_not_add_topics_beyond_the_limit(
    member_id: str, topics: set[str], most: int, room: bool
) -> None:
    """Row TA31. The group knows t (6 partitions, of member a), u (2), v (1). The request brings new (3)."""
    group = make_group({"a": {}})
    told: TopicImages = {"new": TopicImage(UUID(int=9), 3)}
    assert has_room(replace(CONFIG, group_max_partitions=most), group, member_id, topics, told) is room


def test_a_new_group_has_room_for_what_its_first_member_brings() -> None:
    told: TopicImages = {"new": TopicImage(UUID(int=9), 3), "none": None}
    for most, room in ((3, True), (2, False)):
        assert has_room(replace(CONFIG, group_max_partitions=most), None, "", {"new", "none"}, told) is room
    assert has_room(replace(CONFIG, group_max_partitions=1), None, "", {"new"}, None)


def test_a_report_of_a_known_topic_counts_only_if_it_has_grown() -> None:
    group = make_group({"a": {"subscribed_topic_names": ["v"]}})
    grown: TopicImages = {"u": TopicImage(UUID(bytes=U), 9)}
    replaced: TopicImages = {"u": TopicImage(UUID(int=9), 9)}
    config = replace(CONFIG, group_max_partitions=4)
    assert not has_room(config, group, "new", {"u"}, grown)
    assert has_room(config, group, "new", {"u"}, replaced)
