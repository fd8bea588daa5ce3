"""The decision about each group whose offsets move to another coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kafka_why.contract.protocols.subscriptions import TopicPartition

# Other types of groups have no offsets that OffsetCommit sets (KIP-932, KIP-1071).
_WITH_OFFSETS = ("classic", "consumer")


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """A committed offset. `leader_epoch` is None if the committer sent none."""

    offset: int
    leader_epoch: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group read from one of the coordinators. `kind` is Kafka's group type in lower case.

    `error` says why the group or its offsets cannot be read, or is "".
    """

    group_id: str
    kind: str = ""
    state: str = ""
    members: int = 0
    offsets: Mapping[TopicPartition, CommittedPosition] = field(default_factory=dict)
    error: str = ""


class AdoptDecision(StrEnum):
    """The decision about a group."""

    MOVE = "move"
    """Its offsets are to be committed at the other coordinator."""
    MOVED = "moved"
    """The other coordinator has its offsets now."""
    SAME = "same"
    """The other coordinator already has these offsets."""
    EMPTY = "no offsets"
    """There is nothing to move."""
    REFUSED = "refused"
    """The reason says what has to be done first."""


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    """The decision about a group, and the `offsets` to commit: those that are missing or different at the
    target.
    """

    group: FoundGroup
    outcome: AdoptDecision
    reason: str = ""
    offsets: Mapping[TopicPartition, CommittedPosition] = field(default_factory=dict)


def plan(group: FoundGroup, there: FoundGroup | None, *, overwrite: bool) -> AdoptPlan:
    """Decide about a group. `there` is the same group at the target coordinator, or None if it does not
    exist.

    Neither may have members, because a member would commit to the coordinator that it knows. Different
    offsets at the target are replaced only with `overwrite`.
    """
    for side in (group, there):
        if side is not None and side.error:
            return AdoptPlan(group, AdoptDecision.REFUSED, side.error)
    if group.kind not in _WITH_OFFSETS:
        return AdoptPlan(group, AdoptDecision.REFUSED, f"is a {group.kind} group")
    if group.members:
        return AdoptPlan(group, AdoptDecision.REFUSED, f"has {group.members} members: stop them first")
    if there is not None and there.members:
        return AdoptPlan(
            group, AdoptDecision.REFUSED, f"has {there.members} members at the other coordinator"
        )
    if not group.offsets:
        return AdoptPlan(group, AdoptDecision.EMPTY)
    known = {} if there is None else there.offsets
    missing = {partition: at for partition, at in group.offsets.items() if known.get(partition) != at}
    if not missing:
        return AdoptPlan(group, AdoptDecision.SAME)
    others = sum(1 for partition in missing if partition in known)
    if others and not overwrite:
        return AdoptPlan(
            group,
            AdoptDecision.REFUSED,
            f"the other coordinator has other offsets of {others} partitions: see --overwrite",
            missing,
        )
    return AdoptPlan(group, AdoptDecision.MOVE, offsets=missing)
