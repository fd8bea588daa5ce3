"""The history says when every member has its target assignment. Rows GS4, SP25."""

from collections.abc import Iterable

from kafka_why.contract.kafka.history import EntryType
from state.kafka.context import RuleId, StepContext
from state.kafka.modern_group import ModernGroup


def record_stable(
    context: StepContext, rule: RuleId, members: Iterable[str], *, has_rebalanced: bool
) -> None:
    """Record that every member has its target, with the time since the rebalance began if it was one."""
    group = context.group_of(ModernGroup)
    began_ms = group.last_rebalance_at_ms
    context.record(
        rule,
        EntryType.STABLE,
        "every member has its target assignment",
        members=list(members),
        took_ms=context.now_ms - began_ms if has_rebalanced and began_ms is not None else None,
    )
