"""A member's pattern (SubscribedTopicRegex) and the topics that it matches. Rows RG4a to RG4f, RX1 to RX4,
RA3.

Patterns are matched outside the core: the sender of a heartbeat adds the result to it, and the topic watcher
sends new results (`regex_resolved`).
Source: GroupMetadataManager.maybeUpdateRegularExpressions.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeGuard

from msgspec import UNSET
from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import RegexResolution, RegexResolved
from kafka_why.contract.kafka.snapshot import listed
from kafka_why.contract.messages import ErrorCode
from state.kafka.consumer.target import forget_unused, store_topic_images
from state.kafka.consumer_group import CheckedRegex, ConsumerGroup, ConsumerMember, ResolvedRegex
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import RequestRefused, bump, merge_reported, refresh_fingerprint

# Patterns whose topics are filtered by what members may DESCRIBE. Rows RA1 to RA5.
#
# If the sender of a heartbeat checks ACLs, it leaves topics out of a pattern's result. The topic watcher does
# not have a member's rights. So for such a pattern its results only remove topics, and their digest shows
# that the cluster's topics have changed. The group then requests another check from a member with the
# pattern, in the answer to its heartbeat. Only a check adds topics. In Kafka a heartbeat starts the check,
# which is filtered by its sender's rights. As here, the result then applies to all members with the pattern.
# Source: GroupMetadataManager.maybeUpdateRegularExpressions, refreshRegularExpressions,
# TopicRegexResolver.filterTopicDescribeAuthorizedTopics.


CHECK_MIN_INTERVAL_MS = 10_000
"""Minimum time between two checks of a group's pattern, as in Kafka. After this time a check that did not
come is requested again, perhaps from another member. Source: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
"""


def begin_checks(context: StepContext, group: ConsumerGroup, pattern: str) -> None:
    """Filter the pattern's topics from now on (row RA1). The group's topics stay until the next check, which
    is requested here.
    """
    if pattern not in group.checked_regexes:
        context.rule("RA1")
        _keep_checked(group, pattern, CheckedRegex())


def is_check_due(context: StepContext, group: ConsumerGroup, pattern: str) -> bool:
    """Return True if a checked pattern needs another check.

    Its topics have changed, or the last check is older than `group.consumer.regex.refresh.interval.ms`, so
    members' rights may have changed.
    """
    checked = group.checked_regexes.get(pattern)
    if checked is None:
        return False
    interval_ms = context.config.group_consumer_regex_refresh_interval_ms
    checked_at_ms = checked.looked_at_ms
    return checked.is_wanted or checked_at_ms is None or context.now_ms - checked_at_ms > interval_ms


def is_check_requested(group: ConsumerGroup, pattern: str) -> bool:
    """Return True if a check of this pattern was requested."""
    checked = group.checked_regexes.get(pattern)
    return checked is not None and checked.asked_at_ms is not None


def pattern_to_check(context: StepContext, group: ConsumerGroup, member: ConsumerMember) -> str | None:
    """Return the member's pattern if its heartbeat's answer should request a check (row RA4), else None. The
    time of the request is recorded.
    """
    pattern = member.subscribed_topic_regex
    checked = group.checked_regexes.get(pattern)
    if checked is None or not is_check_due(context, group, pattern):
        return None
    last = [at_ms for at_ms in (checked.asked_at_ms, checked.looked_at_ms) if at_ms is not None]
    if last and context.now_ms - max(last) < CHECK_MIN_INTERVAL_MS:
        return None
    context.rule("RA4")
    _keep_checked(group, pattern, replace(checked, asked_at_ms=context.now_ms))
    return pattern


def record_check(
    context: StepContext,
    group: ConsumerGroup,
    rule: RuleId,
    pattern: str,
    resolution: RegexResolution,
    *,
    has_entry: bool,
) -> None:
    """Record a member's check of a pattern, if the result was filtered or the pattern is a checked one.

    `has_entry` is True if the history already has an entry about the result.
    """
    before = group.checked_regexes.get(pattern)
    if before is None and resolution.seen is UNSET:
        return
    # A gateway without ACLs filters nothing and sends no digest, so another check is needed.
    seen = "" if resolution.seen is UNSET else resolution.seen
    requested_at_ms = None if before is None else before.asked_at_ms
    _keep_checked(group, pattern, CheckedRegex(seen, context.now_ms, requested_at_ms, is_wanted=not seen))
    # A changed digest always needs an entry, which notifies the topic watcher.
    if not has_entry and (before is None or before.seen != seen):
        reason = f"the pattern {pattern!r} was checked again and matches the same topics"
        context.record(rule, EntryType.REGEX_RESOLVED, reason, topics=sorted(resolution.topics))


def record_failed_check(context: StepContext, group: ConsumerGroup, pattern: str) -> None:
    """Record that the pattern could not be matched: the group keeps its topics until the next result."""
    checked = group.checked_regexes.get(pattern)
    if checked is not None:
        failed = replace(checked, looked_at_ms=context.now_ms, is_wanted=not checked.seen)
        _keep_checked(group, pattern, failed)


def filter_watcher_results(
    context: StepContext, group: ConsumerGroup, patterns: Mapping[str, RegexResolution]
) -> dict[str, RegexResolution]:
    """Return the part of the watcher's results that the group accepts (row RA2)."""
    return {
        pattern: _without_unchecked_topics(context, group, pattern, result)
        if pattern in group.checked_regexes
        else result
        for pattern, result in patterns.items()
        if pattern in group.resolved_regexes or pattern not in group.checked_regexes
    }


def request_checks(
    context: StepContext, group: ConsumerGroup, patterns: Mapping[str, RegexResolution]
) -> bool:
    """Row RA5: request a check of each checked pattern whose topics the watcher found changed.

    Return True if there is one.
    """
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
        _keep_checked(group, pattern, replace(group.checked_regexes[pattern], is_wanted=True))
    return True


def _without_unchecked_topics(
    context: StepContext, group: ConsumerGroup, pattern: str, result: RegexResolution
) -> RegexResolution:
    """Row RA2: drop the topics that no member's check found."""
    context.rule("RA2")
    known = set(group.resolved_regexes[pattern].topics)
    return replace(result, topics={name: image for name, image in result.topics.items() if name in known})


def _keep_checked(group: ConsumerGroup, pattern: str, checked: CheckedRegex) -> None:
    group.checked_regexes = dict(sorted({**group.checked_regexes, pattern: checked}.items()))


class RegexChange(Enum):
    """A change of a member's pattern.

    UPDATED_AND_RESOLVED: the matching topics are known, so a new target can use them. REFRESHED: the same
    pattern matches other topics.
    """

    NONE = "none"
    UPDATED = "updated"
    UPDATED_AND_RESOLVED = "updated and resolved"
    REFRESHED = "refreshed"


def update_regex(
    context: StepContext,
    group: ConsumerGroup,
    member: ConsumerMember,
    new: str,
    resolution: RegexResolution | None,
    *,
    checks_topics: bool = False,
) -> RegexChange:
    """Prepare the group for the member's new pattern, before the member has it. `new` is "" for no pattern.

    `resolution` is the sender's result for the pattern, or None. With `checks_topics` the sender filters
    results, so no other source may add topics. Raises RequestRefused (row RG4c) if the pattern is new to the
    group and is not a regular expression.
    """
    if new == member.subscribed_topic_regex:
        context.rule("RG4a")
        change = _refresh(context, group, new, resolution, checks_topics=checks_topics)
    else:
        change = _change_pattern(context, group, member, new, resolution, checks_topics=checks_topics)
    if new and checks_topics:
        begin_checks(context, group, new)
    return change


def _change_pattern(
    context: StepContext,
    group: ConsumerGroup,
    member: ConsumerMember,
    new: str,
    resolution: RegexResolution | None,
    *,
    checks_topics: bool,
) -> RegexChange:
    old = member.subscribed_topic_regex
    others = {m.subscribed_topic_regex for m in group.members.values() if m is not member}
    if old and old not in others:
        context.rule("RG4b")
        group.resolved_regexes = {p: r for p, r in group.resolved_regexes.items() if p != old}
        group.checked_regexes = {p: c for p, c in group.checked_regexes.items() if p != old}
    if not new:
        context.rule("RG4f")
        return RegexChange.UPDATED_AND_RESOLVED
    if new not in others:
        return _add_pattern(context, group, new, resolution)
    if new in group.resolved_regexes:
        context.rule("RG4d")
        if checks_topics and new not in group.checked_regexes and _is_usable(resolution):
            take_result(context, group, context.rule("RA3"), new, resolution)
        return RegexChange.UPDATED_AND_RESOLVED
    context.rule("RG4e")
    return _resolve_at_once(context, group, new, resolution)


def _add_pattern(
    context: StepContext, group: ConsumerGroup, pattern: str, resolution: RegexResolution | None
) -> RegexChange:
    row = context.rule("RG4c")
    if resolution is not None and resolution.error is not None:
        context.rule("RX2")
        text = f"SubscribedTopicRegex {pattern!r} is not a valid regular expression: {resolution.error}"
        raise RequestRefused(row, ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    return _resolve_at_once(context, group, pattern, resolution)


def _resolve_at_once(
    context: StepContext, group: ConsumerGroup, pattern: str, resolution: RegexResolution | None
) -> RegexChange:
    """Use the result that came with the request. Without one, wait for the watcher (row RX4)."""
    if not _is_usable(resolution):
        context.rule("RX4")
        return RegexChange.UPDATED
    if not context.config.regex_resolve_at_once:
        return RegexChange.UPDATED
    take_result(context, group, context.rule("RX3"), pattern, resolution)
    return RegexChange.UPDATED_AND_RESOLVED


def _refresh(
    context: StepContext,
    group: ConsumerGroup,
    pattern: str,
    resolution: RegexResolution | None,
    *,
    checks_topics: bool,
) -> RegexChange:
    """Rows RG5d and RA3: use the result of a request that repeats its pattern.

    It counts if the group has no result or an old one, if a check is due, or if it is the first filtered
    result.
    """
    if not pattern or resolution is None:
        return RegexChange.NONE
    known = group.resolved_regexes.get(pattern)
    begins_checks = checks_topics and known is not None and pattern not in group.checked_regexes
    is_check = begins_checks or (is_check_due(context, group, pattern) and is_check_requested(group, pattern))
    if resolution.error is not None:
        if is_check:
            record_failed_check(context, group, pattern)
        return RegexChange.NONE
    is_old = known is None or (
        resolution.at_ms - known.at_ms > context.config.group_consumer_regex_refresh_interval_ms
    )
    if not is_check and not (is_old and context.config.regex_resolve_at_once):
        return RegexChange.NONE
    row = context.rule("RA3" if is_check else "RG5d")
    has_changed = take_result(context, group, row, pattern, resolution)
    # The fingerprint is compared again.
    group.metadata_stale = True
    context.retention_is_stale = True
    return RegexChange.REFRESHED if is_check and has_changed else RegexChange.NONE


def _is_usable(resolution: RegexResolution | None) -> TypeGuard[RegexResolution]:
    return resolution is not None and resolution.error is None


def take_result(
    context: StepContext, group: ConsumerGroup, rule: RuleId, pattern: str, resolution: RegexResolution
) -> bool:
    """Store a pattern's result from a request, and the topics that it reports. Return True if the pattern's
    topics changed.
    """
    known = group.resolved_regexes.get(pattern)
    has_entry = known is None or known.topics != sorted(resolution.topics)
    has_changed = store_result(context, group, rule, pattern, resolution)
    record_check(context, group, rule, pattern, resolution, has_entry=has_entry)
    merge_reported(context, group, dict(resolution.topics))
    return has_changed


def store_result(
    context: StepContext, group: ConsumerGroup, rule: RuleId, pattern: str, resolution: RegexResolution
) -> bool:
    """Store a pattern's result, and return True if its topics changed. The first result and each change have
    a history entry.
    """
    known = group.resolved_regexes.get(pattern)
    topics = sorted(resolution.topics)
    _set_resolved(group, pattern, ResolvedRegex(topics, resolution.at_ms))
    if known is not None and known.topics == topics:
        return False
    matched = f"matches {listed(topics, 'topic') or 'no topic'}"
    if resolution.error is not None:
        matched = f"is not a regular expression and matches nothing: {resolution.error}"
    reason = f"the pattern {pattern!r} {matched}"
    context.record(rule, EntryType.REGEX_RESOLVED, reason, topics=topics)
    return known is not None or bool(topics)


def _set_resolved(group: ConsumerGroup, pattern: str, result: ResolvedRegex) -> None:
    group.resolved_regexes = dict(sorted({**group.resolved_regexes, pattern: result}.items()))


# RegexResolved: the topic watcher's results for the patterns of a group. Rows RG6 to RG8, RX6.
#
# Source: GroupMetadataManager.handleRegularExpressionsResult.


def regex_resolved(context: StepContext, group: ConsumerGroup, request: RegexResolved) -> None:
    """Store the results of the patterns that members have. One new epoch covers all changes.

    No target is computed. Members get the new epoch by their next heartbeats.
    """
    members = group.members.values()
    patterns = {member.subscribed_topic_regex for member in members} - {""}
    results = {p: r for p, r in sorted(request.patterns.items()) if p in patterns}
    has_seen_others = request_checks(context, group, results)
    allowed = filter_watcher_results(context, group, results)
    taken = {p: r for p, r in allowed.items() if _is_not_older(context, group, p, r)}
    if not taken:
        if not has_seen_others:
            context.rule("RG6")
        return
    row = context.rule("RG7")
    changed = [
        repr(pattern)
        for pattern, result in taken.items()
        if store_result(context, group, row, pattern, result)
    ]
    images = {name: image for result in taken.values() for name, image in result.topics.items()}
    store_topic_images(context, group, dict(images), set(images))
    forget_unused(context)
    topics_changed = refresh_fingerprint(group)
    if not changed and not topics_changed:
        return
    reason = "the topics that members subscribe to have changed"
    if changed:
        reason = f"the topics of {listed(changed, 'pattern')} have changed"
        context.retention_is_stale = True
    bump(context, context.rule("RG8"), reason)


def _is_not_older(context: StepContext, group: ConsumerGroup, pattern: str, result: RegexResolution) -> bool:
    """Return True if the result is not older than the known one (row RX6)."""
    known = group.resolved_regexes.get(pattern)
    if known is None or result.at_ms >= known.at_ms:
        return True
    context.rule("RX6")
    return False
