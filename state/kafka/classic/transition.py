"""The change of a group's state, with its history entry."""

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic_group import LEGAL_PREVIOUS_STATES, ClassicGroup
from state.kafka.context import RuleId, StepContext


def transition(
    context: StepContext, rule: RuleId, to: GroupState, event: EntryType, reason: str, **details: object
) -> None:
    """Move the group to another state, and record the reason."""
    group = context.group_of(ClassicGroup)
    assert group.state in LEGAL_PREVIOUS_STATES[to], f"{group.state} -> {to} is no legal transition"
    group.previous_state, group.state = group.state, to
    group.state_timestamp_ms = context.now_ms
    context.retention_is_stale = True
    context.record(rule, event, reason, **details)
