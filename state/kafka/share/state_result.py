"""ShareStateResult: what the share coordinator answered to a task (row SP5)."""

from state.kafka.context import StepContext
from state.kafka.share.deletion import note_deletion
from state.kafka.share.initialization import note_initialization
from state.kafka.share_group import ShareGroup
from state.kafka.share_requests import ShareStateResult


def state_result(context: StepContext, result: ShareStateResult) -> None:
    """Take the outcome of a task. Members learn by their next heartbeats what follows."""
    if context.group_of(ShareGroup).deletion:
        note_deletion(context, result)
    else:
        note_initialization(context, result)
