"""A coordinator takes a RocketMQ group over after none ran for a while."""

from state.inputs import Outage
from state.rocketmq.context import StepContext
from state.rocketmq.effects import EntryType
from state.rocketmq.group import ClientChannelInfo, LockEntry


def take_over(context: StepContext, outage: Outage) -> None:
    """Nobody could be heard of meanwhile: connections and locks count as heard of now.

    A broker of RocketMQ that starts again knows nobody until clients come back; this one forgets nobody.
    """
    group = context.group
    heard_of: tuple[ClientChannelInfo | LockEntry, ...] = (
        *group.channels.values(),
        *group.producers.values(),
        *group.locks.values(),
    )
    if group.quarantined is not None or not heard_of:
        return
    for entry in heard_of:
        entry.last_update_ms = context.now_ms
    context.record(
        EntryType.TAKEN_OVER,
        f"no coordinator ran for {outage.length_ms} ms: connections and locks count as heard of now",
    )
