"""A member's pattern (SubscribedTopicRegex) and the topics that it matches. Rows RG4a to RG4f, RX1 to RX4,
RA3.

The patterns are matched outside of the core: the sender of a heartbeat adds the result to it, and the
topic watcher sends new results (`state.kafka.consumer.regex_resolved`).
Source: GroupMetadataManager.maybeUpdateRegularExpressions.
"""

from enum import Enum
from typing import TypeGuard

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.wording import listed
from state.kafka.consumer.regex_checked import (
    begin_checks,
    is_look_due,
    note_failed_look,
    note_look,
    was_asked,
)
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.refusal import Refused
from state.kafka.modern.topics import merge_reported


class Change(Enum):
    """How a member's pattern changed. RESOLVED: the topics that it matches are known, so a new target
    assignment can take them into account. REFRESHED: the pattern is the same and matches other topics.
    """

    NONE = "none"
    UPDATED = "updated"
    UPDATED_AND_RESOLVED = "updated and resolved"
    REFRESHED = "refreshed"


def update_regex(
    context: StepContext,
    member: ConsumerMember,
    new: str,
    resolution: RegexResolution | None,
    *,
    checks_topics: bool = False,
) -> Change:
    """Prepare the group for the member's pattern `new`, "" for none, before the member has it.

    `resolution` is what the sender of the request knows of the pattern, None if it does not know. With
    `checks_topics` the sender filters what patterns match, so nobody else may add topics to it. Raises
    Refused (row RG4c) if the pattern is new to the group and is no regular expression.
    """
    if new == member.subscribed_topic_regex:
        context.rule("RG4a")
        change = _refresh(context, new, resolution, checks_topics=checks_topics)
    else:
        change = _changed(context, member, new, resolution, checks_topics=checks_topics)
    if new and checks_topics:
        begin_checks(context, new)
    return change


def _changed(
    context: StepContext,
    member: ConsumerMember,
    new: str,
    resolution: RegexResolution | None,
    *,
    checks_topics: bool,
) -> Change:
    """The member gets another pattern than it had."""
    group, old = context.group_of(ConsumerGroup), member.subscribed_topic_regex
    others = {m.subscribed_topic_regex for m in group.members.values() if m is not member}
    if old and old not in others:
        context.rule("RG4b")
        group.resolved_regexes = {p: r for p, r in group.resolved_regexes.items() if p != old}
        group.checked_regexes = {p: c for p, c in group.checked_regexes.items() if p != old}
    if not new:
        context.rule("RG4f")
        return Change.UPDATED_AND_RESOLVED
    if new not in others:
        return _new_to_the_group(context, new, resolution)
    if new in group.resolved_regexes:
        context.rule("RG4d")
        if checks_topics and new not in group.checked_regexes and _is_usable(resolution):
            take_result(context, context.rule("RA3"), new, resolution)
        return Change.UPDATED_AND_RESOLVED
    context.rule("RG4e")
    return _resolve_at_once(context, new, resolution)


def _new_to_the_group(context: StepContext, pattern: str, resolution: RegexResolution | None) -> Change:
    row = context.rule("RG4c")
    if resolution is not None and resolution.error is not None:
        context.rule("RX2")
        text = f"SubscribedTopicRegex {pattern!r} is not a valid regular expression: {resolution.error}"
        raise Refused(row, ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    return _resolve_at_once(context, pattern, resolution)


def _resolve_at_once(context: StepContext, pattern: str, resolution: RegexResolution | None) -> Change:
    """Take the result that came with the request. Without one, the watcher is waited for (row RX4)."""
    if not _is_usable(resolution):
        context.rule("RX4")
        return Change.UPDATED
    if not context.config.regex_resolve_at_once:
        return Change.UPDATED
    take_result(context, context.rule("RX3"), pattern, resolution)
    return Change.UPDATED_AND_RESOLVED


def _refresh(
    context: StepContext, pattern: str, resolution: RegexResolution | None, *, checks_topics: bool
) -> Change:
    """Row RG5d: a request that repeats its pattern brings a result where none is known, and a newer one where
    the known one is old. The fingerprint is then compared again. Row RA3: a request brings a look that is
    due, or the first filtered result.
    """
    if not pattern or resolution is None:
        return Change.NONE
    group = context.group_of(ConsumerGroup)
    known = group.resolved_regexes.get(pattern)
    begins_checks = checks_topics and known is not None and pattern not in group.checked_regexes
    is_look = begins_checks or (is_look_due(context, pattern) and was_asked(group, pattern))
    if resolution.error is not None:
        if is_look:
            note_failed_look(context, pattern)
        return Change.NONE
    is_old = known is None or (
        resolution.at_ms - known.at_ms > context.config.group_consumer_regex_refresh_interval_ms
    )
    if not is_look and not (is_old and context.config.regex_resolve_at_once):
        return Change.NONE
    has_changed = take_result(context, context.rule("RA3" if is_look else "RG5d"), pattern, resolution)
    group.metadata_stale = True
    context.retention_is_stale = True
    return Change.REFRESHED if is_look and has_changed else Change.NONE


def _is_usable(resolution: RegexResolution | None) -> TypeGuard[RegexResolution]:
    return resolution is not None and resolution.error is None


def take_result(context: StepContext, rule: RuleId, pattern: str, resolution: RegexResolution) -> bool:
    """Keep the result of a pattern that came with a request, and what it reports of the topics. Return
    whether the pattern's topics changed.
    """
    known = context.group_of(ConsumerGroup).resolved_regexes.get(pattern)
    has_entry = known is None or known.topics != sorted(resolution.topics)
    has_changed = store_result(context, rule, pattern, resolution)
    note_look(context, rule, pattern, resolution, has_entry=has_entry)
    merge_reported(context, context.group_of(ConsumerGroup), dict(resolution.topics))
    return has_changed


def store_result(context: StepContext, rule: RuleId, pattern: str, resolution: RegexResolution) -> bool:
    """Keep the result of a pattern, and return whether its topics changed. The first result and each change
    have an entry.
    """
    group = context.group_of(ConsumerGroup)
    known = group.resolved_regexes.get(pattern)
    topics = sorted(resolution.topics)
    _keep(group, pattern, ResolvedRegex(topics, resolution.at_ms))
    if known is not None and known.topics == topics:
        return False
    matched = f"matches {listed(topics, 'topic') or 'no topic'}"
    if resolution.error is not None:
        matched = f"is no regular expression and matches nothing: {resolution.error}"
    reason = f"the pattern {pattern!r} {matched}"
    context.record(rule, EntryType.REGEX_RESOLVED, reason, topics=topics)
    return known is not None or bool(topics)


def _keep(group: ConsumerGroup, pattern: str, result: ResolvedRegex) -> None:
    group.resolved_regexes = dict(sorted({**group.resolved_regexes, pattern: result}.items()))
