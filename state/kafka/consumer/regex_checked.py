"""Patterns whose topics are filtered by what members may DESCRIBE. Rows RA1 to RA5.

Where the sender of a heartbeat checks ACLs, it leaves topics out of what a pattern matches. The topic watcher
has no member's rights. So for such a pattern its results only remove topics, and tell by a digest that the
cluster's topics have changed. The group then asks a member with the pattern for another look, by the answer
to its heartbeat. Without a look the group learns no new topic. In Kafka a heartbeat starts the look, which is
filtered by the rights of its sender, and the result holds for all members with the pattern, as here. Source:
GroupMetadataManager.maybeUpdateRegularExpressions, refreshRegularExpressions,
TopicRegexResolver.filterTopicDescribeAuthorizedTopics.
"""

from collections.abc import Mapping

from msgspec import UNSET
from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import RegexResolution
from state.kafka.consumer_group import CheckedRegex, ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext

LOOKS_APART_MS = 10_000
"""The least time between two looks for a pattern of a group, as in Kafka. A look that was asked for and did
not come is asked for again then, perhaps of another member. Source: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
"""


def begin_checks(context: StepContext, pattern: str) -> None:
    """From now on the pattern's topics are filtered (row RA1). Those that the group knows stay until the look
    that it wants.
    """
    group = context.group_of(ConsumerGroup)
    if pattern not in group.checked_regexes:
        context.rule("RA1")
        _keep(group, pattern, CheckedRegex())


def is_look_due(context: StepContext, pattern: str) -> bool:
    """Whether the group needs a look: its topics may be others, or the rights (after
    `group.consumer.regex.refresh.interval.ms`). Only of a checked pattern.
    """
    checked = context.group_of(ConsumerGroup).checked_regexes.get(pattern)
    if checked is None:
        return False
    most_ms = context.config.group_consumer_regex_refresh_interval_ms
    looked_at_ms = checked.looked_at_ms
    return checked.is_wanted or looked_at_ms is None or context.now_ms - looked_at_ms > most_ms


def was_asked(group: ConsumerGroup, pattern: str) -> bool:
    """Whether a member was asked to look at this pattern."""
    checked = group.checked_regexes.get(pattern)
    return checked is not None and checked.asked_at_ms is not None


def look_to_ask(context: StepContext, member: ConsumerMember) -> str | None:
    """The member's pattern if the answer to its heartbeat asks for a look (row RA4)."""
    group, pattern = context.group_of(ConsumerGroup), member.subscribed_topic_regex
    checked = group.checked_regexes.get(pattern)
    if checked is None or not is_look_due(context, pattern):
        return None
    last = [at_ms for at_ms in (checked.asked_at_ms, checked.looked_at_ms) if at_ms is not None]
    if last and context.now_ms - max(last) < LOOKS_APART_MS:
        return None
    context.rule("RA4")
    _keep(group, pattern, replace(checked, asked_at_ms=context.now_ms))
    return pattern


def note_look(
    context: StepContext, rule: RuleId, pattern: str, resolution: RegexResolution, *, has_entry: bool
) -> None:
    """Remember what was looked at, if the result was filtered or the pattern is a checked one.

    `has_entry`: the history has an entry about the result already. Another digest has one in any case, by
    which the topic watcher learns of it.
    """
    group = context.group_of(ConsumerGroup)
    before = group.checked_regexes.get(pattern)
    if before is None and resolution.seen is UNSET:
        return
    # A gateway without ACLs filters nothing and tells no digest, so another look is wanted.
    seen = "" if resolution.seen is UNSET else resolution.seen
    asked_at_ms = None if before is None else before.asked_at_ms
    _keep(group, pattern, CheckedRegex(seen, context.now_ms, asked_at_ms, is_wanted=not seen))
    if not has_entry and (before is None or before.seen != seen):
        reason = f"the pattern {pattern!r} was looked at again and matches the same topics"
        context.record(rule, EntryType.REGEX_RESOLVED, reason, topics=sorted(resolution.topics))


def note_failed_look(context: StepContext, pattern: str) -> None:
    """The pattern could not be matched this time: the group keeps its topics until the next look."""
    group = context.group_of(ConsumerGroup)
    checked = group.checked_regexes.get(pattern)
    if checked is not None:
        looked = replace(checked, looked_at_ms=context.now_ms, is_wanted=not checked.seen)
        _keep(group, pattern, looked)


def allowed_of_watcher(
    context: StepContext, patterns: Mapping[str, RegexResolution]
) -> dict[str, RegexResolution]:
    """What the group takes of the watcher's results: results of checked patterns lose the topics that the
    group does not know by a look (row RA2), and may make a look wanted (row RA5).
    """
    group = context.group_of(ConsumerGroup)
    return {
        pattern: _allowed(context, pattern, result) if pattern in group.checked_regexes else result
        for pattern, result in patterns.items()
        if pattern in group.resolved_regexes or pattern not in group.checked_regexes
    }


def note_seen(context: StepContext, patterns: Mapping[str, RegexResolution]) -> bool:
    """Want a look at each checked pattern of which the watcher has seen other topics than the last look (row
    RA5). Return whether there is one.
    """
    group = context.group_of(ConsumerGroup)
    differing = [
        pattern
        for pattern, result in patterns.items()
        if (checked := group.checked_regexes.get(pattern)) is not None
        and result.seen not in (UNSET, checked.seen)
    ]
    if not differing:
        return False
    context.rule("RA5")
    for pattern in differing:
        _keep(group, pattern, replace(group.checked_regexes[pattern], is_wanted=True))
    return True


def _allowed(context: StepContext, pattern: str, result: RegexResolution) -> RegexResolution:
    context.rule("RA2")
    known = set(context.group_of(ConsumerGroup).resolved_regexes[pattern].topics)
    return replace(result, topics={name: image for name, image in result.topics.items() if name in known})


def _keep(group: ConsumerGroup, pattern: str, checked: CheckedRegex) -> None:
    group.checked_regexes = dict(sorted({**group.checked_regexes, pattern: checked}.items()))
