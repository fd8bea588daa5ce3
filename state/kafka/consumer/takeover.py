"""Deadlines after time stood still: in an outage (row F5), or in a quarantine (row F4). Row TM12."""

from kafka_why.contract.kafka.history import EntryType
from state.inputs import Outage
from state.kafka.classic.rebalance import EXTENSION_AT_LEAST_MS
from state.kafka.consumer.session import arm_session
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import StepContext


def take_over(context: StepContext, outage: Outage) -> None:
    """Restart all sessions and shift all other timers by the length of the outage. The topics are compared
    again, because they may have changed meanwhile (row MD11).
    """
    group = context.group_of(ConsumerGroup)
    group.metadata_stale = True
    if not group.members:
        return
    row = context.rule("F5")
    shift_deadlines(context, outage.length_ms)
    context.record(
        row,
        EntryType.TAKEN_OVER,
        f"no coordinator ran for {outage.length_ms} ms: sessions begin anew, reconciliations go on",
        members=list(group.members),
    )


def shift_deadlines(context: StepContext, by_ms: int) -> None:
    """Shift every deadline by `by_ms`, the time for which time stood still, and restart the sessions."""
    for member in context.group_of(ConsumerGroup).members.values():
        arm_session(context, member)
        if member.rebalance_deadline_ms is not None:
            member.rebalance_deadline_ms = context.deadline_at(member.rebalance_deadline_ms + by_ms)
        classic = member.classic
        if classic is not None and classic.join_deadline_ms is not None:
            classic.join_deadline_ms = context.deadline_at(classic.join_deadline_ms + by_ms)
        if classic is not None and classic.sync_deadline_ms is not None:
            classic.sync_deadline_ms = context.deadline_at(classic.sync_deadline_ms + by_ms)


def release(context: StepContext) -> None:
    """Row F4: renew the deadlines of members that are due at the release.

    One of them is the deadline whose handling raised. It gets its full time again. Otherwise the release
    would fire it at once, and the group would be quarantined again.
    """
    for member in context.group_of(ConsumerGroup).members.values():
        full_ms = max(member.rebalance_timeout_ms, EXTENSION_AT_LEAST_MS)
        if _is_due(context, member.rebalance_deadline_ms):
            member.rebalance_deadline_ms = context.deadline(full_ms)
        classic = member.classic
        if classic is not None and _is_due(context, classic.join_deadline_ms):
            classic.join_deadline_ms = context.deadline(full_ms)
        if classic is not None and _is_due(context, classic.sync_deadline_ms):
            classic.sync_deadline_ms = context.deadline(full_ms)


def _is_due(context: StepContext, deadline_ms: int | None) -> bool:
    return deadline_ms is not None and deadline_ms <= context.now_ms
