"""Renewal of connections and locks after time stood still: in an outage, or in a quarantine."""

from kafka_why.contract.rocketmq.history import EntryType
from state.inputs import Outage
from state.rocketmq.context import StepContext
from state.rocketmq.group import ClientChannelInfo, Group, LockEntry


def take_over_group(context: StepContext, outage: Outage) -> None:
    """Renew all connections and locks, because no renewal could be handled in the outage.

    A RocketMQ broker that restarts has no clients until they reconnect. This coordinator keeps them.
    """
    group = context.group
    if group.quarantined is not None or not _heard_of(group):
        return
    _count_as_heard_of(context)
    context.record(
        EntryType.TAKEN_OVER,
        f"no coordinator ran for {outage.length_ms} ms: connections and locks count as heard of now",
    )


def renew(context: StepContext) -> None:
    """Renew all connections and locks of a group that is released, because their renewals were refused in the
    quarantine. A scan may have become due.
    """
    _count_as_heard_of(context)
    context.deadline_at(context.now_ms)


def _count_as_heard_of(context: StepContext) -> None:
    """Set the last update of every connection and lock to now, because requests were not handled
    until now.
    """
    for entry in _heard_of(context.group):
        entry.last_update_ms = context.now_ms


def _heard_of(group: Group) -> tuple[ClientChannelInfo | LockEntry, ...]:
    """Return the entries that expire when their client is silent."""
    return (*group.channels.values(), *group.producers.values(), *group.locks.values())
