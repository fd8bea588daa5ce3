"""History entries: what happened to a group, when, and why. They go to the events topic.

An entry's name is `(group_id, incarnation, seq)`. `seq` counts from 1 without gaps while the group lives. A
reader can therefore drop the duplicates of an at-least-once sink and prove that no entry is missing.
"""

from enum import StrEnum

from msgspec import Struct

DEAD = "Dead"


class GroupState(StrEnum):
    """The state of a group in its rebalance.

    Empty: no members. A JoinGroup starts PreparingRebalance.

    PreparingRebalance: JoinGroups are parked until every member has joined or the time is over. The next
    state is CompletingRebalance, or Empty.

    CompletingRebalance: the generation is formed. SyncGroups are parked until the leader sends the
    assignment. The next state is Stable.

    Stable: the assignment is known. A JoinGroup with a change, a leave or an expiry starts
    PreparingRebalance.

    Kafka's fifth state, Dead, is that of a deleted group. Only answers and the history use it here.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


LEAVE_GROUP_MEMBER_EPOCH = -1


LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2


class ConsumerGroupState(StrEnum):
    """The state of a consumer group, which follows from its epochs and its members (rows GS1 to GS4).

    Empty: no members. Assigning: the group epoch is above that of the target assignment. Reconciling: some
    member has not reached its target assignment. Stable: every member has.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(StrEnum):
    """The progress of a member towards its target assignment. Source: MemberState.java."""

    STABLE = "Stable"
    UNREVOKED_PARTITIONS = "UnrevokedPartitions"
    UNRELEASED_PARTITIONS = "UnreleasedPartitions"


class EntryType(StrEnum):
    """The types of entries. The four types with names of states are the group's transitions to
    these states.
    """

    GROUP_CREATED = "GroupCreated"
    MEMBER_ID_ASSIGNED = "MemberIdAssigned"
    MEMBER_ADDED = "MemberAdded"
    MEMBER_REJOINED = "MemberRejoined"
    MEMBER_REPLACED = "MemberReplaced"
    MEMBER_REMOVED = "MemberRemoved"
    PENDING_MEMBER_REMOVED = "PendingMemberRemoved"
    JOIN_REFUSED = "JoinRefused"
    REQUEST_SUPERSEDED = "RequestSuperseded"
    INITIAL_DELAY_EXTENDED = "InitialDelayExtended"
    REBALANCE_EXTENDED = "RebalanceExtended"
    LEADER_ELECTED = "LeaderElected"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    EMPTY = "Empty"
    OFFSETS_EXPIRED = "OffsetsExpired"
    OFFSETS_DELETED = "OffsetsDeleted"
    TRANSACTION_DROPPED = "TransactionDropped"
    GROUP_DELETED = "GroupDeleted"
    APPLIED_LATE = "AppliedLate"
    QUARANTINED = "Quarantined"
    RELEASED = "Released"
    TAKEN_OVER = "TakenOver"
    # Types of groups of the consumer protocol:
    GROUP_EPOCH_BUMPED = "GroupEpochBumped"
    TARGET_ASSIGNMENT_COMPUTED = "TargetAssignmentComputed"
    MEMBER_RECONCILED = "MemberReconciled"
    MEMBER_LEFT_TEMPORARILY = "MemberLeftTemporarily"
    MEMBER_FENCED = "MemberFenced"
    GROUP_CONVERTED = "GroupConverted"
    TOPICS_CHANGED = "TopicsChanged"
    REGEX_RESOLVED = "RegexResolved"
    CONFIGS_CHANGED = "ConfigsChanged"
    # Types of share groups:
    SHARE_PARTITIONS_INITIALIZING = "SharePartitionsInitializing"
    SHARE_PARTITIONS_INITIALIZED = "SharePartitionsInitialized"
    SHARE_PARTITIONS_NOT_INITIALIZED = "SharePartitionsNotInitialized"
    SHARE_PARTITIONS_DELETING = "SharePartitionsDeleting"
    SHARE_PARTITIONS_NOT_DELETED = "SharePartitionsNotDeleted"
    SHARE_PARTITIONS_REMOVED = "SharePartitionsRemoved"
    # Types of streams groups:
    TOPOLOGY_CHANGED = "TopologyChanged"
    SHUTDOWN_REQUESTED = "ShutdownRequested"


NOT_READY = "NotReady"
"""The state of a streams group whose topology is not valid. Source: StreamsGroupState.java."""
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
"""The values of `group_type`."""
BY_EPOCHS = frozenset((CONSUMER, SHARE, STREAMS))
"""The values of `group_type` for groups with epochs. Their rebalances have the same types of entries."""


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A history entry of a Kafka group.

    Times are in milliseconds. `generation` is the generation after the change. `cause` is the id of the
    request, or the deadline, that led to the entry. `principal` is the principal of the request, or None if
    it had none or a deadline led to the entry. `topics` are the topics of a generation. `subscriptions` are
    the topics of each member, set only if members differ. `last_rebalance_at_ms` is the start of the latest
    rebalance before this entry, running or complete, or None before the first: it lets a reader find the
    members' last assignment without reading the whole history. `replaced_member_id` is the former id of a
    static member that came back. A field is None where the entry's type does not use it.

    `group_type` is `classic`, `consumer`, `share` or `streams`, the protocol of the group after the entry.
    Except in a classic group, `generation` is the group epoch, and
    `assignment_epoch` the epoch of its target assignment. What a member has is shown by topic name, or by the
    topic id if no topic has the id; in a streams group these are tasks, by role and subtopology (`active 0`).
    In a `MemberReconciled`, `assigned` is what it may use, `revoking` what it has to give up, and `awaiting`
    what it gets once others have given it up. In a `TargetAssignmentComputed`, `targets` are the assignments
    of the members that it changes, and `moved_partitions` is the number of partitions that go from one member
    to another. In a `GroupConverted`, `targets` is what each member has in the group's new protocol. A share
    group is in the state Stable as long as it has members; its entry `Stable` says that each has its target
    assignment. `took_ms` is the time from the start of the rebalance to `Stable`, from the answer that asked
    a member to give partitions up to its acknowledgement, or from the request to initialize share partitions
    until that was done. `error_code` is the error with which the share coordinator refused a task.
    `process_id` is the process of a streams group's member, set when it joins. In a streams group's
    `TargetAssignmentComputed`, `partitions` are standby tasks that have fewer copies than configured, because
    there are too few processes.

    `observed`: the entry follows from records of the cluster's own coordinator (docs/observe.md). These do
    not say when a rebalance of a classic group began: the time of such a `PreparingRebalance` is the latest
    time at which it can have begun. If a poll found the group rebalancing, the entry has `within_ms`: the
    rebalance began at most that long before.
    """

    version: int  # no default, so that it is always written
    type: EntryType
    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    from_state: str
    to_state: str
    generation: int
    reason: str
    rule: str
    cause: str
    member_id: str | None = None
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    client_reason: str | None = None
    leader_id: str | None = None
    protocol_name: str | None = None
    members: list[str] | None = None
    waiting_for: list[str] | None = None
    deadline_ms: int | None = None
    topics: list[str] | None = None
    subscriptions: dict[str, list[str]] | None = None
    assignments: dict[str, bytes] | None = None
    partitions: dict[str, list[int]] | None = None
    superseded: str | None = None
    late_by_ms: int | None = None
    last_rebalance_at_ms: int | None = None
    replaced_member_id: str | None = None
    principal: str | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    group_type: str = "classic"
    assignment_epoch: int | None = None
    member_epoch: int | None = None
    member_state: str | None = None
    assignor_name: str | None = None
    assigned: dict[str, list[int]] | None = None
    revoking: dict[str, list[int]] | None = None
    awaiting: dict[str, list[int]] | None = None
    targets: dict[str, dict[str, list[int]]] | None = None
    took_ms: int | None = None
    moved_partitions: int | None = None
    observed: bool = False
    within_ms: int | None = None
    error_code: int | None = None
    process_id: str | None = None
