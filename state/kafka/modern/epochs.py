"""The group epoch: what raises it, and when the next target assignment is due. Rows HB49 to HB55, TA3, SH21
to SH24, ST2, ST3.

Source: GroupMetadataManager (consumerGroupHeartbeat, shareGroupHeartbeat, maybeUpdateTargetAssignment).
"""

from kafka_why.contract.kafka.history import EntryType
from state.kafka.context import RuleId, StepContext
from state.kafka.modern_group import ModernGroup


def bump(context: StepContext, rule: RuleId, reason: str, **details: object) -> None:
    """Raise the group epoch by one. A rebalance begins with it unless one is running already."""
    group = context.group_of(ModernGroup)
    was_rebalancing = group.is_rebalancing
    group.group_epoch += 1
    if not was_rebalancing:
        group.last_rebalance_at_ms, group.last_rebalance_reason = context.now_ms, reason
    context.record(rule, EntryType.GROUP_EPOCH_BUMPED, reason, **details)


def is_due(context: StepContext, interval_ms: int) -> bool:
    """Whether the assignment interval since the last computation is over."""
    return due_in_ms(context, interval_ms) == 0


def due_in_ms(context: StepContext, interval_ms: int) -> int:
    """The rest of the assignment interval since the last computation."""
    computed_ms = context.group_of(ModernGroup).assignment_timestamp_ms
    return 0 if computed_ms == 0 else max(0, computed_ms + interval_ms - context.now_ms)


def come_to_rest(context: StepContext) -> None:
    """The last member is gone: the next one to join gets its partitions at once (KAFKA-20442)."""
    group = context.group_of(ModernGroup)
    group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, 0
