"""Retention: unused offsets expire. A group without members and offsets is deleted. Rows Z1 to Z7.

A pass is due at a multiple of `offsets.retention.check.interval.ms`. Only the first pass that could expire an
offset is armed, so an idle group is not called. Source: OffsetMetadataManager.cleanupExpiredOffsets,
ClassicGroup.offsetExpirationCondition, GroupMetadataManager.maybeDeleteGroup.
"""

from collections.abc import Iterator

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.offsets import Offset
from state.config import CoordinatorConfig
from state.kafka.context import StepContext
from state.kafka.effects import KafkaGroup


def retention_pass(context: StepContext) -> None:
    """Remove expired offsets. Delete the group if it has no members and no offsets, and none is pending."""
    group, config = context.group, context.config
    group.retention_deadline_ms = None
    expired: dict[str, list[int]] = {}
    own_times = set()
    pending = group.pending_partitions()
    for topic, partition, offset in _expirable(context):
        if _due_ms(group, offset, config) <= context.now_ms:
            if partition in pending.get(topic, ()):
                context.rule("Z7")
                continue
            own_times.add(offset.expire_at_ms is not None)
            expired.setdefault(topic, []).append(partition)
    if expired:
        by, since = group.why_expired()
        row, reason = context.rule(by), f"{since} for {config.offsets_retention_minutes} minutes"
        if True in own_times:
            by_committer = context.rule("Z4")
            row = row if False in own_times else by_committer
            reason += ", or for as long as the committer chose"
        context.forget(expired)
        context.record(row, EntryType.OFFSETS_EXPIRED, reason, partitions=expired)
    if group.is_over():
        context.delete_group(context.rule("Z6"), "it has no members and no offsets")
    else:
        context.retention_is_stale = True


def arm(context: StepContext) -> None:
    """At the end of a step, arm the first pass that could expire an offset."""
    group = context.group
    if context.retention_is_stale:
        _arm_for_all(context)
        return
    if not context.offset_changes or not group.can_expire_offsets:
        return
    topics = dict.fromkeys(change.topic for change in context.offset_changes)
    subscribed = {topic for topic in topics if group.is_subscribed(topic)}
    for change in context.offset_changes:
        if change.offset is not None and change.topic not in subscribed:
            _arm_by(context, _due_ms(group, change.offset, context.config))


def _arm_for_all(context: StepContext) -> None:
    group = context.group
    group.retention_deadline_ms = None
    if group.is_over():
        _arm_by(context, context.now_ms)
        return
    if group.offsets and not group.can_expire_offsets:
        context.rule("Z5")
        return
    # A partition with a pending offset does not expire, and this runs again when none is pending any more.
    pending = group.pending_partitions()
    due_ms = min(
        (
            _due_ms(group, offset, context.config)
            for topic, partition, offset in _expirable(context)
            if partition not in pending.get(topic, ())
        ),
        default=None,
    )
    if due_ms is not None:
        _arm_by(context, due_ms)


def _arm_by(context: StepContext, due_ms: int) -> None:
    """Arm the first pass after now that is not before `due_ms`, unless an earlier pass is armed."""
    interval_ms = context.config.offsets_retention_check_interval_ms
    pass_ms = max(-(-due_ms // interval_ms), context.now_ms // interval_ms + 1) * interval_ms
    armed_ms = context.group.retention_deadline_ms
    if armed_ms is None or pass_ms < armed_ms:
        context.group.retention_deadline_ms = context.deadline_at(pass_ms)


def _expirable(context: StepContext) -> Iterator[tuple[str, int, Offset]]:
    group = context.group
    subscribed = group.subscribed()
    for topic, partitions in group.offsets.items():
        if topic not in subscribed:
            for partition, offset in partitions.items():
                yield topic, partition, offset


def _due_ms(group: KafkaGroup, offset: Offset, config: CoordinatorConfig) -> int:
    if offset.expire_at_ms is not None:
        return offset.expire_at_ms
    abandoned_ms = group.abandoned_since_ms
    base_ms = offset.committed_at_ms if abandoned_ms is None else abandoned_ms
    return base_ms + config.offsets_retention_ms
