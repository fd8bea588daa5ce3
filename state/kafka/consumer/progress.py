"""The end of a step: whether the group has come to rest. Rows GS1 and GS4."""

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.states import ConsumerGroupState
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import StepContext
from state.kafka.modern.progress import record_stable
from state.kafka.protocol import Before


def progress_of(group: ConsumerGroup) -> Before:
    """Return the state of the group, and whether its members are on their way to their targets."""
    return group.progress


def note_state(context: StepContext, before: Before) -> None:
    """Note the new state of the group, and record that it has become Stable or Empty. `before` is from before
    the step, `Empty` for a new group.

    Every change of the state has a history entry, so a step without one costs nothing here.
    """
    if not context.has_history:
        return
    state_before, was_rebalancing = before
    group = context.group_of(ConsumerGroup)
    group.forget_progress()
    state = group.progress.state
    if state == state_before:
        return
    group.state_timestamp_ms = context.now_ms
    if state is ConsumerGroupState.EMPTY:
        context.record(context.rule("GS1"), EntryType.EMPTY, "the last member is gone")
    elif state is ConsumerGroupState.STABLE:
        # A static member that comes back in time ends no rebalance.
        has_rebalanced = was_rebalancing or group.last_rebalance_at_ms == context.now_ms
        record_stable(context, context.rule("GS4"), group.members, has_rebalanced=has_rebalanced)
