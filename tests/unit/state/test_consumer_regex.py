"""The patterns of members: how one changes, and what a result that comes with a request does."""

from uuid import UUID

import pytest
from msgspec import structs

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.inputs import Received
from state.kafka.consumer.regex import Change, update_regex
from state.kafka.consumer.regex_checked import look_to_ask
from state.kafka.consumer_group import CheckedRegex, ConsumerGroup, ConsumerMember, ResolvedRegex
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.modern.refusal import Refused
from state.kafka.requests import RegexResolution, RegexResolved
from state.kafka.step import step
from state.kafka.topic_images import TopicImage

A = UUID(int=1)
FOUND = RegexResolution(topics={"b": TopicImage(A, 2), "a": TopicImage(UUID(int=2), 1)}, at_ms=1_000)
LATER = CoordinatorConfig(regex_resolve_at_once=False)


def group_of(mine: str = "", other: str = "", resolved: bool = False) -> ConsumerGroup:
    members = {
        "m": ConsumerMember("m", subscribed_topic_regex=mine),
        "o": ConsumerMember("o", subscribed_topic_regex=other),
    }
    results = {p: ResolvedRegex(["t"], 500) for p in (mine, other) if p and resolved}
    return ConsumerGroup("g", "requests-0-0", members=members, resolved_regexes=results, metadata_stale=False)


def update(
    group: ConsumerGroup,
    new: str,
    resolution: RegexResolution | None = None,
    config: CoordinatorConfig | None = None,
    *,
    checks: bool = False,
) -> tuple[Change, list[str], list[str]]:
    """The kind of the change, its rows, and the reasons in the history."""
    context = StepContext(group, "g", "requests-0-1", 2_000, config or CoordinatorConfig())
    change = update_regex(context, group.members["m"], new, resolution, checks_topics=checks)
    effects = context.effects()
    return change, effects.rules, [entry.reason for entry in effects.history]


def test_a_new_pattern_is_resolved_by_the_request_that_brings_it() -> None:
    group = group_of()
    assert update(group, "[ab]", FOUND) == (
        Change.UPDATED_AND_RESOLVED,
        ["RG4c", "RX3", "MI7"],
        ["the pattern '[ab]' matches a, b"],
    )
    assert group.resolved_regexes == {"[ab]": ResolvedRegex(["a", "b"], 1_000)}
    assert group.topics["b"] == Topic(A.bytes, 2)


def test_without_a_result_or_in_kafkas_order_it_is_resolved_later() -> None:
    for resolution, config, rows in ((None, None, ["RG4c", "RX4"]), (FOUND, LATER, ["RG4c"])):
        group = group_of()
        assert update(group, "[ab]", resolution, config) == (Change.UPDATED, rows, [])
        assert not group.resolved_regexes and not group.topics


def test_a_pattern_is_only_refused_where_it_is_new_to_the_group() -> None:
    """Row RX2: the gateway does not know which, so it never refuses by itself."""
    error = RegexResolution(error="missing ]: [a")
    for config in (None, LATER):
        with pytest.raises(Refused, match=r"'\[a' is not a valid regular expression: missing \]") as refused:
            update(group_of(), "[a", error, config)
        assert (refused.value.rule, refused.value.error) == ("RG4c", ErrorCode.INVALID_REGULAR_EXPRESSION)
    assert update(group_of(other="[a"), "[a", error)[:2] == (Change.UPDATED, ["RG4e", "RX4"])
    assert update(group_of(mine="[a"), "[a", error) == (Change.NONE, ["RG4a"], [])


def test_a_pattern_that_others_have() -> None:
    known = group_of(other="x", resolved=True)
    assert update(known, "x", FOUND) == (Change.UPDATED_AND_RESOLVED, ["RG4d"], [])
    assert known.resolved_regexes["x"].topics == ["t"]
    assert update(group_of(other="x"), "x")[:2] == (Change.UPDATED, ["RG4e", "RX4"])
    change, rows, _ = update(group_of(other="x"), "x", FOUND)
    assert (change, rows[:2]) == (Change.UPDATED_AND_RESOLVED, ["RG4e", "RX3"])


def test_the_result_of_a_pattern_goes_with_its_last_member() -> None:
    alone = group_of(mine="x", resolved=True)
    assert update(alone, "") == (Change.UPDATED_AND_RESOLVED, ["RG4b", "RG4f"], [])
    assert alone.resolved_regexes == {}
    shared = group_of(mine="x", other="x", resolved=True)
    assert update(shared, "y")[:2] == (Change.UPDATED, ["RG4c", "RX4"])
    assert list(shared.resolved_regexes) == ["x"]


def test_a_repeated_pattern_is_no_change_and_refreshes_an_old_result() -> None:
    """Row RG5d."""
    group = group_of(mine="x", resolved=True)
    assert update(group, "x", FOUND) == (Change.NONE, ["RG4a"], [])
    assert not group.metadata_stale
    old = CoordinatorConfig(group_consumer_regex_refresh_interval_ms=499)
    change, rows, reasons = update(group, "x", FOUND, old)
    assert (change, rows[:2]) == (Change.NONE, ["RG4a", "RG5d"])
    assert reasons == ["the pattern 'x' matches a, b"]
    assert group.metadata_stale and group.resolved_regexes["x"] == ResolvedRegex(["a", "b"], 1_000)
    unresolved = group_of(mine="x")
    assert update(unresolved, "x", FOUND, LATER)[1] == ["RG4a"]
    assert update(unresolved, "x", FOUND)[1][:2] == ["RG4a", "RG5d"]
    assert update(group_of(), "", None) == (Change.NONE, ["RG4a"], [])


def test_kafkas_order_holds_for_a_checked_pattern_too() -> None:
    """Without `regex_resolve_at_once` its first topics come by a look, as Kafka's by a refresh."""
    group = group_of()
    filtered = structs.replace(FOUND, seen="ab")
    assert update(group, "[ab]", filtered, LATER, checks=True) == (Change.UPDATED, ["RG4c", "RA1"], [])
    group.members["m"].subscribed_topic_regex = "[ab]"
    assert update(group, "[ab]", filtered, LATER, checks=True)[1] == ["RG4a"]
    context = StepContext(group, "g", "requests-0-1", 2_000, LATER)
    assert look_to_ask(context, group.members["m"]) == "[ab]"
    assert look_to_ask(context, group.members["m"]) is None
    change, rows, _ = update(group, "[ab]", filtered, LATER, checks=True)
    assert (change, rows[:2]) == (Change.REFRESHED, ["RG4a", "RA3"])
    assert group.resolved_regexes["[ab]"].topics == ["a", "b"]
    assert group.checked_regexes["[ab]"] == CheckedRegex("ab", 2_000, 2_000, is_wanted=False)


def test_a_look_that_fails_keeps_the_topics_until_the_next_one() -> None:
    group = group_of(mine="x", resolved=True)
    group.checked_regexes = {"x": CheckedRegex("s", 500, 1_000, is_wanted=True)}
    slow = RegexResolution(error="it takes too long", seen="t")
    assert update(group, "x", slow, checks=True) == (Change.NONE, ["RG4a"], [])
    assert group.resolved_regexes["x"].topics == ["t"]
    assert group.checked_regexes["x"] == CheckedRegex("s", 2_000, 1_000, is_wanted=False)


def test_a_result_without_a_digest_makes_another_look_wanted() -> None:
    """A gateway that checks no ACLs brought it, with the pattern of a member that joins."""
    group = group_of(other="x")
    group.checked_regexes = {"x": CheckedRegex()}
    assert update(group, "x", FOUND)[0] is Change.UPDATED_AND_RESOLVED
    assert group.checked_regexes["x"] == CheckedRegex("", 2_000, None, is_wanted=True)


def test_what_is_checked_goes_with_the_last_member_of_the_pattern() -> None:
    group = group_of(mine="x", resolved=True)
    group.checked_regexes = {"x": CheckedRegex("s", 500)}
    update(group, "")
    assert group.checked_regexes == {}


def resolved(
    group: ConsumerGroup, at_ms: int = 1_000, **patterns: dict[str, TopicImage]
) -> tuple[list[str], list[str]]:
    """Apply a result of the watcher, and return the rows and the reasons in the history."""
    found = {pattern: RegexResolution(topics=topics, at_ms=at_ms) for pattern, topics in patterns.items()}
    event = Received("requests-0-1", RegexResolved(group_id="g", patterns=found))
    effects = step(group, "g", event, 2_000, CoordinatorConfig())
    return effects.rules, [entry.reason for entry in effects.history]


def test_a_result_of_the_watcher_raises_the_epoch_once_for_all_patterns() -> None:
    """Rows RG7, RG8."""
    group = group_of(mine="x", other="y")
    rows, reasons = resolved(group, x={"a": TopicImage(A, 2)}, y={"b": TopicImage(UUID(int=2), 1)}, z={})
    assert rows == ["RG7", "MI9", "RG8"]
    assert reasons == [
        "the pattern 'x' matches a",
        "the pattern 'y' matches b",
        "in the cluster: a exists with 2 partitions, b exists with 1 partition",
        "the topics of 'x', 'y' have changed",
    ]
    assert group.group_epoch == 2 and not group.metadata_stale
    assert list(group.resolved_regexes) == ["x", "y"]


def test_the_same_result_again_is_stored_with_its_time_and_changes_nothing() -> None:
    """Row RG7."""
    group = group_of(mine="x", other="y")
    resolved(group, x={"a": TopicImage(A, 2)}, y={})
    assert group.unresolved_regexes() == []
    assert resolved(group, 1_500, x={"a": TopicImage(A, 2)}, y={}) == (["RG7"], [])
    assert group.group_epoch == 2
    assert group.resolved_regexes["x"] == ResolvedRegex(["a"], 1_500)


def test_the_epoch_rises_too_when_only_the_fingerprint_changed() -> None:
    group = group_of(mine="x")
    resolved(group, x={"a": TopicImage(A, 2)})
    rows, reasons = resolved(group, x={"a": TopicImage(A, 3)})
    assert rows == ["RG7", "MI9", "RG8"]
    assert reasons[-1] == "the topics that members subscribe to have changed"
    assert group.group_epoch == 3


def test_a_result_that_is_old_or_that_nobody_waits_for_is_dropped() -> None:
    """Rows RG6, RX6."""
    group = group_of(mine="x", resolved=True)
    assert resolved(group, 499, x={}) == (["RX6", "RG6"], [])
    assert resolved(group, y={}) == (["RG6"], [])
    assert group.resolved_regexes == {"x": ResolvedRegex(["t"], 500)}
    assert group.group_epoch == 1
    event = Received("requests-0-1", RegexResolved(group_id="g", patterns={"x": FOUND}))
    assert step(None, "g", event, 2_000, CoordinatorConfig()).group is None
