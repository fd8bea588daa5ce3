"""Time stood still for a RocketMQ group: no coordinator ran, or the group was quarantined."""

from state.inputs import Outage
from state.rocketmq.context import StepContext
from state.rocketmq.group import ClientChannelInfo, Group, LockEntry
from state.rocketmq.history import EntryType


def take_over(context: StepContext, outage: Outage) -> None:
    """Nobody could be heard of meanwhile: connections and locks count as heard of now.

    A broker of RocketMQ that starts again knows nobody until clients come back; this one forgets nobody.
    """
    group = context.group
    if group.quarantined is not None or not _heard_of(group):
        return
    count_as_heard_of(context)
    context.record(
        EntryType.TAKEN_OVER,
        f"no coordinator ran for {outage.length_ms} ms: connections and locks count as heard of now",
    )


def count_as_heard_of(context: StepContext) -> None:
    """Requests were not handled until now: nothing of the group has been silent yet."""
    for entry in _heard_of(context.group):
        entry.last_update_ms = context.now_ms


def _heard_of(group: Group) -> tuple[ClientChannelInfo | LockEntry, ...]:
    """What expires when its client is silent."""
    return (*group.channels.values(), *group.producers.values(), *group.locks.values())
