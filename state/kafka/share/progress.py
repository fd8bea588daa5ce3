"""The end of a step: whether the group has members, and whether each has come to its target. Rows SG4, SG5,
SP25.
"""

from kafka_why.contract.kafka.history import EntryType
from state.kafka.context import StepContext
from state.kafka.modern.progress import record_stable
from state.kafka.protocol import Before
from state.kafka.share_group import ShareGroup


def progress_of(group: ShareGroup) -> Before:
    """Return the state of the group, and whether members are on their way to a target."""
    return group.state, not group.is_settled


def note_state(context: StepContext, before: Before) -> None:
    """Note the new state of the group, and record that each member has its target, because the state does
    not say it. `before` is from before the step, `Empty` for a new group.

    Every change has a history entry, so a step without one costs nothing here.
    """
    if not context.has_history:
        return
    state_before, was_unsettled = before
    group = context.group_of(ShareGroup)
    group.forget_progress()
    if group.state != state_before:
        context.rule("SG5" if group.members else "SG4")
        group.state_timestamp_ms = context.now_ms
    has_rebalanced = was_unsettled or context.has_recorded(EntryType.GROUP_EPOCH_BUMPED)
    if group.members and has_rebalanced and group.is_settled:
        record_stable(context, context.rule("SP25"), group.members, has_rebalanced=True)
