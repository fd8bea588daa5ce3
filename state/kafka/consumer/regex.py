"""A member's pattern (SubscribedTopicRegex) and the topics that it matches. Rows RG4a to RG4f, RX1 to RX4,
RA3.

The core does not match patterns. The sender of a heartbeat, such as a gateway, adds a result to its request:
the topics that match. The topic watcher sends new results later (`regex_resolved`).
Source: GroupMetadataManager.maybeUpdateRegularExpressions.

A row, such as RX3, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
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
from state.kafka.modern import RequestRefused, bump, merge_reported_topics, refresh_fingerprint

# Patterns whose topics are filtered by what members may DESCRIBE. Rows RA1 to RA5.
#
# If the sender of a heartbeat checks ACLs, its result for a pattern leaves out the topics that the client may
# not DESCRIBE. Such a filtered result is called a check, and the pattern is then a checked pattern.
#
# The topic watcher does not know the members' rights. So its results for a checked pattern only remove
# topics, and their digest shows that the cluster's topics have changed. The group then requests another check
# from a member with the pattern, in the answer to its heartbeat. Only a check adds topics. Its
# result applies to all members with the pattern. In Kafka, too, the topics are filtered by the rights of the
# heartbeat's sender, and the result then applies to all members with the pattern.
#
# Source: GroupMetadataManager.maybeUpdateRegularExpressions, refreshRegularExpressions,
# TopicRegexResolver.filterTopicDescribeAuthorizedTopics.


CHECK_MIN_INTERVAL_MS = 10_000
"""Minimum time between two checks of a group's pattern, as in Kafka. If a requested check has not arrived
after this time, it is requested again, perhaps from another member. Source:
REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
"""


def begin_checks(context: StepContext, group: ConsumerGroup, pattern: str) -> None:
    """Make the pattern a checked pattern (row RA1), so that the group requests a first check. Until then the
    group keeps the pattern's topics.
    """
    if pattern not in group.checked_regexes:
        context.cite("RA1")
        _set_checked(group, pattern, CheckedRegex())


def is_check_due(context: StepContext, group: ConsumerGroup, pattern: str) -> bool:
    """Return True if the pattern is a checked pattern and needs another check.

    It does if its topics have changed, or if the last check is older than
    `group.consumer.regex.refresh.interval.ms`, because members' rights may have changed.
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


def request_due_check(context: StepContext, group: ConsumerGroup, member: ConsumerMember) -> str | None:
    """Record that the answer to the member's heartbeat requests a check, if one is due (row RA4).

    Return the pattern to check, or None.
    """
    pattern = member.subscribed_topic_regex
    checked = group.checked_regexes.get(pattern)
    if checked is None or not is_check_due(context, group, pattern):
        return None
    times_ms = [at_ms for at_ms in (checked.asked_at_ms, checked.looked_at_ms) if at_ms is not None]
    if times_ms and context.now_ms - max(times_ms) < CHECK_MIN_INTERVAL_MS:
        return None
    context.cite("RA4")
    _set_checked(group, pattern, replace(checked, asked_at_ms=context.now_ms))
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
    """Record a member's check of a pattern. Do nothing if the result was not filtered and the pattern is not
    a checked pattern.

    `has_entry` is True if the history already has an entry about the result.
    """
    last_check = group.checked_regexes.get(pattern)
    if last_check is None and resolution.seen is UNSET:
        return
    # A gateway without ACLs filters nothing and sends no digest, so another check is needed.
    seen = "" if resolution.seen is UNSET else resolution.seen
    requested_at_ms = None if last_check is None else last_check.asked_at_ms
    check = CheckedRegex(seen, looked_at_ms=context.now_ms, asked_at_ms=requested_at_ms, is_wanted=not seen)
    _set_checked(group, pattern, check)
    # A changed digest always needs an entry, which notifies the topic watcher.
    if not has_entry and (last_check is None or last_check.seen != seen):
        reason = f"the pattern {pattern!r} was checked again and matches the same topics"
        context.record(rule, EntryType.REGEX_RESOLVED, reason, topics=sorted(resolution.topics))


def record_failed_check(context: StepContext, group: ConsumerGroup, pattern: str) -> None:
    """Record that a check of the pattern failed. The group keeps its topics until the next result."""
    checked = group.checked_regexes.get(pattern)
    if checked is not None:
        failed = replace(checked, looked_at_ms=context.now_ms, is_wanted=not checked.seen)
        _set_checked(group, pattern, failed)


def filter_watcher_results(
    context: StepContext, group: ConsumerGroup, patterns: Mapping[str, RegexResolution]
) -> dict[str, RegexResolution]:
    """Return the watcher's results that the group accepts, by pattern (row RA2).

    The watcher does not filter topics by the members' rights. So a result of a checked pattern counts only
    for the topics that a check found, and not at all before the first check.
    """
    accepted = {}
    for pattern, result in patterns.items():
        if pattern not in group.checked_regexes:
            accepted[pattern] = result
        elif pattern in group.resolved_regexes:
            accepted[pattern] = _without_unchecked_topics(context, group, pattern, result)
    return accepted


def request_checks(
    context: StepContext, group: ConsumerGroup, patterns: Mapping[str, RegexResolution]
) -> bool:
    """Row RA5: request a check of each checked pattern whose topics the watcher found changed.

    Return True if a check was requested.
    """
    changed = [
        pattern
        for pattern, result in patterns.items()
        if (checked := group.checked_regexes.get(pattern)) is not None
        and result.seen not in (UNSET, checked.seen)
    ]
    if not changed:
        return False
    context.cite("RA5")
    for pattern in changed:
        _set_checked(group, pattern, replace(group.checked_regexes[pattern], is_wanted=True))
    return True


def _without_unchecked_topics(
    context: StepContext, group: ConsumerGroup, pattern: str, result: RegexResolution
) -> RegexResolution:
    """Row RA2: return the watcher's result without the topics that no member's check found."""
    context.cite("RA2")
    allowed = set(group.resolved_regexes[pattern].topics)
    return replace(result, topics={name: image for name, image in result.topics.items() if name in allowed})


def _set_checked(group: ConsumerGroup, pattern: str, checked: CheckedRegex) -> None:
    group.checked_regexes = dict(sorted({**group.checked_regexes, pattern: checked}.items()))


class RegexChange(Enum):
    """A change of a member's pattern.

    UPDATED: the member has another pattern, whose topics are not known yet. UPDATED_AND_RESOLVED: they are
    known, so a new target can use them. REFRESHED: the member's pattern is the same but matches other topics.
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
    """Update the group's patterns before the member gets the pattern `new`, which is "" for no pattern and
    may be the member's current pattern.

    `resolution` is the sender's result for the pattern, or None. If `checks_topics` is True, the sender
    filters results, so no other source may add topics. Raises RequestRefused (row RG4c) if the pattern is new
    to the group and is not a regular expression.
    """
    if new == member.subscribed_topic_regex:
        context.cite("RG4a")
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
    """Rows RG4b to RG4f: forget the member's old pattern if no other member has it, and use a result for
    `new`.
    """
    old = member.subscribed_topic_regex
    patterns_of_others = {m.subscribed_topic_regex for m in group.members.values() if m is not member}
    if old and old not in patterns_of_others:
        context.cite("RG4b")
        group.resolved_regexes = {p: r for p, r in group.resolved_regexes.items() if p != old}
        group.checked_regexes = {p: c for p, c in group.checked_regexes.items() if p != old}
    if not new:
        context.cite("RG4f")
        return RegexChange.UPDATED_AND_RESOLVED
    if new not in patterns_of_others:
        return _add_pattern(context, group, new, resolution)
    if new in group.resolved_regexes:
        context.cite("RG4d")
        if checks_topics and new not in group.checked_regexes and _is_usable(resolution):
            store_reported_result(context, group, context.cite("RA3"), new, resolution)
        return RegexChange.UPDATED_AND_RESOLVED
    context.cite("RG4e")
    return _use_reported_result(context, group, new, resolution)


def _add_pattern(
    context: StepContext, group: ConsumerGroup, pattern: str, resolution: RegexResolution | None
) -> RegexChange:
    """Row RG4c: use the request's result for a pattern that no other member has. Raise RequestRefused if the
    pattern is not a regular expression.
    """
    row = context.cite("RG4c")
    if resolution is not None and resolution.error is not None:
        context.cite("RX2")
        text = f"SubscribedTopicRegex {pattern!r} is not a valid regular expression: {resolution.error}"
        raise RequestRefused(row, ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    return _use_reported_result(context, group, pattern, resolution)


def _use_reported_result(
    context: StepContext, group: ConsumerGroup, pattern: str, resolution: RegexResolution | None
) -> RegexChange:
    """Store the request's result for the pattern. If the request has none (row RX4), or if
    `regex_resolve_at_once` is False, the group waits for a result of the watcher.
    """
    if not _is_usable(resolution):
        context.cite("RX4")
        return RegexChange.UPDATED
    if not context.config.regex_resolve_at_once:
        return RegexChange.UPDATED
    store_reported_result(context, group, context.cite("RX3"), pattern, resolution)
    return RegexChange.UPDATED_AND_RESOLVED


def _refresh(
    context: StepContext,
    group: ConsumerGroup,
    pattern: str,
    resolution: RegexResolution | None,
    *,
    checks_topics: bool,
) -> RegexChange:
    """Rows RG5d and RA3: use the result of a request whose pattern is the member's current pattern.

    The result is used if the group has no result or an old one, if it is a check that was requested and is
    due, or if it is the first filtered result.
    """
    if not pattern or resolution is None:
        return RegexChange.NONE
    stored = group.resolved_regexes.get(pattern)
    begins_checks = checks_topics and stored is not None and pattern not in group.checked_regexes
    is_check = begins_checks or (is_check_due(context, group, pattern) and is_check_requested(group, pattern))
    if resolution.error is not None:
        if is_check:
            record_failed_check(context, group, pattern)
        return RegexChange.NONE
    is_stored_old = stored is None or (
        resolution.at_ms - stored.at_ms > context.config.group_consumer_regex_refresh_interval_ms
    )
    if not is_check and not (is_stored_old and context.config.regex_resolve_at_once):
        return RegexChange.NONE
    row = context.cite("RA3" if is_check else "RG5d")
    has_changed = store_reported_result(context, group, row, pattern, resolution)
    # This step has to compute the fingerprint of the topics again.
    group.metadata_stale = True
    context.retention_is_stale = True
    return RegexChange.REFRESHED if is_check and has_changed else RegexChange.NONE


def _is_usable(resolution: RegexResolution | None) -> TypeGuard[RegexResolution]:
    """Return True if there is a result, and the pattern is a regular expression."""
    return resolution is not None and resolution.error is None


def store_reported_result(
    context: StepContext, group: ConsumerGroup, rule: RuleId, pattern: str, resolution: RegexResolution
) -> bool:
    """Store a pattern's result from a request, and the topics that it reports. Return True if the pattern's
    topics changed.
    """
    stored = group.resolved_regexes.get(pattern)
    # `store_result` adds a history entry for a first or changed result.
    has_entry = stored is None or stored.topics != sorted(resolution.topics)
    has_changed = store_result(context, group, rule, pattern, resolution)
    record_check(context, group, rule, pattern, resolution, has_entry=has_entry)
    merge_reported_topics(context, group, dict(resolution.topics))
    return has_changed


def store_result(
    context: StepContext, group: ConsumerGroup, rule: RuleId, pattern: str, resolution: RegexResolution
) -> bool:
    """Store a pattern's result, and return True if the pattern's topics changed. A first result changes them
    unless it has no topics. The first result and each change have a history entry.
    """
    stored = group.resolved_regexes.get(pattern)
    topics = sorted(resolution.topics)
    results = {**group.resolved_regexes, pattern: ResolvedRegex(topics, resolution.at_ms)}
    group.resolved_regexes = dict(sorted(results.items()))
    if stored is not None and stored.topics == topics:
        return False
    matched = f"matches {listed(topics, 'topic') or 'no topic'}"
    if resolution.error is not None:
        matched = f"is not a regular expression and matches nothing: {resolution.error}"
    reason = f"the pattern {pattern!r} {matched}"
    context.record(rule, EntryType.REGEX_RESOLVED, reason, topics=topics)
    return stored is not None or bool(topics)


# RegexResolved: the topic watcher's results for the patterns of a group. Rows RG6 to RG8, RX6.
#
# Source: GroupMetadataManager.handleRegularExpressionsResult.


def regex_resolved(context: StepContext, group: ConsumerGroup, request: RegexResolved) -> None:
    """Store the results of the patterns that members have. One new epoch covers all changes.

    No target is computed. Members get the new epoch by their next heartbeats.
    """
    subscribed = {member.subscribed_topic_regex for member in group.members.values()} - {""}
    results = {p: r for p, r in sorted(request.patterns.items()) if p in subscribed}
    has_requested_checks = request_checks(context, group, results)
    allowed = filter_watcher_results(context, group, results)
    accepted = {p: r for p, r in allowed.items() if _is_not_older(context, group, p, r)}
    if not accepted:
        if not has_requested_checks:
            context.cite("RG6")
        return
    row = context.cite("RG7")
    changed = [
        repr(pattern)
        for pattern, result in accepted.items()
        if store_result(context, group, row, pattern, result)
    ]
    images = {name: image for result in accepted.values() for name, image in result.topics.items()}
    store_topic_images(context, group, dict(images), set(images))
    forget_unused(context)
    topics_changed = refresh_fingerprint(group)
    if not changed and not topics_changed:
        return
    reason = "the topics that members subscribe to have changed"
    if changed:
        reason = f"the topics of {listed(changed, 'pattern')} have changed"
        context.retention_is_stale = True
    bump(context, context.cite("RG8"), reason)


def _is_not_older(context: StepContext, group: ConsumerGroup, pattern: str, result: RegexResolution) -> bool:
    """Return True if the result is not older than the stored result of the pattern (row RX6)."""
    stored = group.resolved_regexes.get(pattern)
    if stored is None or result.at_ms >= stored.at_ms:
        return True
    context.cite("RX6")
    return False
