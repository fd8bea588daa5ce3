"""Deadlines after time stood still: in an outage (row F5), or in a quarantine (row F4)."""

from kafka_why.contract.kafka.history import EntryType
from state.inputs import Outage
from state.kafka.context import StepContext
from state.kafka.share.settings import SETTINGS
from state.kafka.share_group import ShareGroup


def take_over(context: StepContext, outage: Outage) -> None:
    """Restart all sessions (row SR7). The topics are compared again, because they may have changed."""
    group = context.group_of(ShareGroup)
    group.metadata_stale = True
    row = context.rule("F5")
    shift_deadlines(context, outage.length_ms)
    if group.members:
        context.record(
            row,
            EntryType.TAKEN_OVER,
            f"no coordinator ran for {outage.length_ms} ms: sessions begin anew",
            members=list(group.members),
        )


def shift_deadlines(context: StepContext, by_ms: int) -> None:
    """Restart the sessions, and move the other deadlines by `by_ms`, for which time stood still."""
    group = context.group_of(ShareGroup)
    timeout_ms = SETTINGS.of(context).session_timeout_ms
    for member in group.members.values():
        member.session_deadline_ms = context.deadline(timeout_ms)
    for parked in group.parked:
        parked.deadline_ms = context.deadline_at(parked.deadline_ms + by_ms)
    if group.overdue_deadline_ms is not None:
        group.overdue_deadline_ms = context.deadline_at(group.overdue_deadline_ms + by_ms)


def release(context: StepContext) -> None:
    """Row F4: nothing is due, because the sessions have moved with the group's clock."""
