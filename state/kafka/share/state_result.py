"""ShareStateResult: what the share coordinator answered to a task (row SP5)."""

from kafka_why.contract.kafka.share_requests import ShareStateResult
from state.kafka.context import StepContext
from state.kafka.share.deletion import maybe_end_deletion, note_deletion
from state.kafka.share.initialization import note_initialization
from state.kafka.share.overdue import stop_watching
from state.kafka.share.parked import note_ended
from state.kafka.share.topics import forget_unused
from state.kafka.share_group import ShareGroup


def state_result(context: StepContext, result: ShareStateResult) -> None:
    """Take the outcome of a task, or a part of it. Members learn by their next heartbeats what follows."""
    group = context.group_of(ShareGroup)
    deletes = any(topic.task == result.task for topic in group.deleting.values())
    ended = note_deletion(context, result) if deletes else note_initialization(context, result)
    stop_watching(group)
    note_ended(context, ended)
    if not ended.keys() <= group.initializing.keys() | group.initialized.keys() | group.deleting.keys():
        forget_unused(context)
    maybe_end_deletion(context)
