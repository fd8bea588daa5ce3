"""RegexResolved: what the patterns of a group match, as the topic watcher reads the cluster. Rows RG6 to
RG8, RX6.

Source: GroupMetadataManager.handleRegularExpressionsResult.
"""

from kafka_why.contract.kafka.requests import RegexResolution, RegexResolved
from kafka_why.contract.kafka.wording import listed
from state.kafka.consumer.regex import store_result
from state.kafka.consumer.regex_checked import allowed_of_watcher, note_seen
from state.kafka.consumer.topics import forget_unused, store_topic_images
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import StepContext
from state.kafka.modern.epochs import bump
from state.kafka.modern.topics import look


def regex_resolved(context: StepContext, request: RegexResolved) -> None:
    """Keep the results of the patterns that members have. One new epoch covers all that changed.

    No target is computed, and members learn of it at their next heartbeats.
    """
    members = context.group_of(ConsumerGroup).members.values()
    patterns = {member.subscribed_topic_regex for member in members} - {""}
    results = {p: r for p, r in sorted(request.patterns.items()) if p in patterns}
    has_seen_others = note_seen(context, results)
    allowed = allowed_of_watcher(context, results)
    taken = {p: r for p, r in allowed.items() if _is_new(context, p, r)}
    if not taken:
        if not has_seen_others:
            context.rule("RG6")
        return
    row = context.rule("RG7")
    changed = [
        repr(pattern) for pattern, result in taken.items() if store_result(context, row, pattern, result)
    ]
    images = {name: image for result in taken.values() for name, image in result.topics.items()}
    store_topic_images(context, dict(images), set(images))
    forget_unused(context)
    topics_changed = look(context.group_of(ConsumerGroup))
    if not changed and not topics_changed:
        return
    reason = "the topics that members subscribe to have changed"
    if changed:
        reason = f"the topics of {listed(changed, 'pattern')} have changed"
        context.retention_is_stale = True
    bump(context, context.rule("RG8"), reason)


def _is_new(context: StepContext, pattern: str, result: RegexResolution) -> bool:
    """Whether the result is not older than the known one (row RX6)."""
    known = context.group_of(ConsumerGroup).resolved_regexes.get(pattern)
    if known is None or result.at_ms >= known.at_ms:
        return True
    context.rule("RX6")
    return False
