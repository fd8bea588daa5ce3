"""Descriptions of groups by their types, and remarks about their states."""

from kafka_why.contract.kafka.history import NOT_READY
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse, DescribeGroupResponse
from kafka_why.contract.kafka.states import DEAD, ConsumerGroupState, GroupState

AnyDescribed = DescribeGroupResponse | ConsumerGroupDescribeResponse
"""The description of a classic group, or of one with epochs: of a share group it is `EpochsDescription`."""
SHARE, STREAMS = "share", "streams"
"""Types of groups as their histories name them."""
_REBALANCING = frozenset(
    (
        GroupState.PREPARING_REBALANCE.value,
        GroupState.COMPLETING_REBALANCE.value,
        ConsumerGroupState.ASSIGNING.value,
        ConsumerGroupState.RECONCILING.value,
    )
)


class EpochsDescription(ConsumerGroupDescribeResponse, frozen=True, kw_only=True, tag="EpochsDescription"):
    """A group that is observed, of any type with epochs. Assignments of a streams group are tasks, and
    `sources` are the topics that they read, by subtopology.
    """

    group_type: str
    sources: dict[str, list[str]]


def group_type(described: AnyDescribed) -> str:
    """The type of the group as its history names it."""
    if isinstance(described, EpochsDescription):
        return described.group_type
    return "consumer" if isinstance(described, ConsumerGroupDescribeResponse) else "classic"


def remark(group_id: str, state: str, type_: str = "consumer") -> str | None:
    """Return the remark for the user about a group in this state, None if there is none."""
    kind = type_.capitalize() if type_ in (SHARE, STREAMS) else "Consumer"
    if state == DEAD:
        return f"Error: {kind} group '{group_id}' does not exist."
    if state == GroupState.EMPTY:
        return f"{kind} group '{group_id}' has no active members."
    if state in _REBALANCING:
        return f"Warning: {kind} group '{group_id}' is rebalancing."
    if state == NOT_READY:
        return (
            f"Warning: {kind} group '{group_id}' is not ready: topics of its topology are missing, or have "
            "wrong numbers of partitions."
        )
    return None
