"""The states of Kafka's groups and of their members."""

from enum import StrEnum

DEAD = "Dead"


class GroupState(StrEnum):
    """The state of a group in its rebalance.

    Empty: no members. A JoinGroup starts PreparingRebalance.

    PreparingRebalance: JoinGroups are parked until every member joined or the time is over. The next state is
    CompletingRebalance, or Empty.

    CompletingRebalance: the generation is formed. SyncGroups are parked until the leader sends the
    assignment. The next state is Stable.

    Stable: the assignment is known. A JoinGroup with a change, a leave or an expiry starts
    PreparingRebalance.

    Kafka's fifth state, Dead, is a deleted group. It is no state here, only a word in answers and history.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


LEAVE_GROUP_MEMBER_EPOCH = -1


LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2


class ConsumerGroupState(StrEnum):
    """The state of a group, which follows from its epochs and its members (rows GS1 to GS4).

    Empty: no members. Assigning: the group epoch is above that of the target assignment. Reconciling: a
    member is not yet at the target assignment. Stable: every member is.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(StrEnum):
    """How far a member is on its way to the target assignment: MemberState.java."""

    STABLE = "Stable"
    UNREVOKED_PARTITIONS = "UnrevokedPartitions"
    UNRELEASED_PARTITIONS = "UnreleasedPartitions"
