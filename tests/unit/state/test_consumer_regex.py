"""The patterns of members: how one changes, and what a result that comes with a request does."""

from uuid import UUID

import pytest

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.kafka.consumer.refusal import Refused
from state.kafka.consumer.regex import Change, update_regex
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.requests import RegexResolution, TopicImage

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
) -> tuple[Change, list[str], list[str]]:
    """The kind of the change, its rows, and the reasons in the history."""
    context = StepContext(group, "g", "requests-0-1", 2_000, config or CoordinatorConfig())
    change = update_regex(context, group.members["m"], new, resolution)
    effects = context.effects()
    return change, effects.rules, [entry.reason for entry in effects.history]


def test_a_new_pattern_is_resolved_by_the_request_that_brings_it() -> None:
    group = group_of()
    assert update(group, "[ab]", FOUND) == (
        Change.UPDATED_AND_RESOLVED,
        ["RG4c", "RX3", "MI7"],
        ["the pattern '[ab]' matches 2 topics"],
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
    assert reasons == ["the pattern 'x' matches 2 topics"]
    assert group.metadata_stale and group.resolved_regexes["x"] == ResolvedRegex(["a", "b"], 1_000)
    unresolved = group_of(mine="x")
    assert update(unresolved, "x", FOUND, LATER)[1] == ["RG4a"]
    assert update(unresolved, "x", FOUND)[1][:2] == ["RG4a", "RG5d"]
    assert update(group_of(), "", None) == (Change.NONE, ["RG4a"], [])
