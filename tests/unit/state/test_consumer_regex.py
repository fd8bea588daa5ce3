"""The patterns of members: how one changes, and what a result that comes with a request does."""

from uuid import UUID

from msgspec import structs

from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.share_requests import TopicImage
from state.config import CoordinatorConfig
from state.kafka.consumer.regex import RegexChange, pattern_to_check, update_regex
from state.kafka.consumer_group import CheckedRegex, ConsumerGroup, ConsumerMember, ResolvedRegex
from state.kafka.context import StepContext

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
) -> tuple[RegexChange, list[str], list[str]]:
    """Return the kind of the change, its rows, and the reasons in the history."""
    context = StepContext(group, "g", "requests-0-1", 2_000, config or CoordinatorConfig())
    change = update_regex(context, group, group.members["m"], new, resolution, checks_topics=checks)
    effects = context.effects()
    return change, effects.rules, [entry.reason for entry in effects.history]


def test_checked_pattern_follows_kafkas_order() -> None:
    """Without `regex_resolve_at_once` its first topics come by a look, as Kafka's by a refresh."""
    group = group_of()
    filtered = structs.replace(FOUND, seen="ab")
    assert update(group, "[ab]", filtered, LATER, checks=True) == (RegexChange.UPDATED, ["RG4c", "RA1"], [])
    group.members["m"].subscribed_topic_regex = "[ab]"
    assert update(group, "[ab]", filtered, LATER, checks=True)[1] == ["RG4a"]
    context = StepContext(group, "g", "requests-0-1", 2_000, LATER)
    assert pattern_to_check(context, group, group.members["m"]) == "[ab]"
    assert pattern_to_check(context, group, group.members["m"]) is None
    change, rows, _ = update(group, "[ab]", filtered, LATER, checks=True)
    assert (change, rows[:2]) == (RegexChange.REFRESHED, ["RG4a", "RA3"])
    assert group.resolved_regexes["[ab]"].topics == ["a", "b"]
    assert group.checked_regexes["[ab]"] == CheckedRegex("ab", 2_000, 2_000, is_wanted=False)


def test_failed_pattern_check_keeps_the_topics_until_the_next_one() -> None:
    group = group_of(mine="x", resolved=True)
    group.checked_regexes = {"x": CheckedRegex("s", 500, 1_000, is_wanted=True)}
    slow = RegexResolution(error="it takes too long", seen="t")
    assert update(group, "x", slow, checks=True) == (RegexChange.NONE, ["RG4a"], [])
    assert group.resolved_regexes["x"].topics == ["t"]
    assert group.checked_regexes["x"] == CheckedRegex("s", 2_000, 1_000, is_wanted=False)
