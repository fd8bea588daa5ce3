"""History entries on the events topic: what happened to a group, when, and why.

An entry is identified by `(group_id, incarnation, seq)`. `seq` counts from 1 without gaps as long as the
group exists. Readers can therefore drop the duplicates of an at-least-once sink, and check that no entry is
missing.
"""

from enum import StrEnum

from msgspec import Struct

DEAD = "Dead"


class GroupState(StrEnum):
    """The state of a group in its rebalance.

    Kafka's fifth state, Dead, is the state of a deleted group. Here only responses and the history have it.
    """

    # The group has no members. A JoinGroup starts PreparingRebalance.
    EMPTY = "Empty"
    # JoinGroups are parked until every member has joined or the time is over. The next state is
    # CompletingRebalance, or Empty.
    PREPARING_REBALANCE = "PreparingRebalance"
    # The generation is formed. SyncGroups are parked until the leader sends the assignment. The next state is
    # Stable.
    COMPLETING_REBALANCE = "CompletingRebalance"
    # The assignment is known. A JoinGroup with a change, a leave or an expiry starts PreparingRebalance.
    STABLE = "Stable"


LEAVE_GROUP_MEMBER_EPOCH = -1


LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2


class ConsumerGroupState(StrEnum):
    """The state of a consumer group, which follows from its epochs and its members (rows GS1 to GS4)."""

    EMPTY = "Empty"  # no members
    ASSIGNING = "Assigning"  # the group epoch is greater than the epoch of the target assignment
    RECONCILING = "Reconciling"  # a member has not reached its target assignment
    STABLE = "Stable"  # every member has reached its target assignment


class MemberState(StrEnum):
    """The progress of a member towards its target assignment. Source: MemberState.java."""

    STABLE = "Stable"
    UNREVOKED_PARTITIONS = "UnrevokedPartitions"
    UNRELEASED_PARTITIONS = "UnreleasedPartitions"


class EntryType(StrEnum):
    """The types of entries. A type with the name of a state is the group's transition to this state."""

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
    ASSIGNMENT_DELAYED = "AssignmentDelayed"
    ENDPOINT_CHANGED = "EndpointChanged"
    SHUTDOWN_REQUESTED = "ShutdownRequested"


NOT_READY = "NotReady"
"""The state of a streams group whose topology is not valid. Source: StreamsGroupState.java."""
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
"""The values of `group_type`."""
BY_EPOCHS = frozenset((CONSUMER, SHARE, STREAMS))
"""The values of `group_type` for groups with epochs. Their rebalances have the same types of entries."""


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A history entry of a Kafka group. A field is None if the entry's type does not use it.

    Partitions are by topic name, or by topic id if no topic has the id. In a streams group they are tasks, by
    role and subtopology (`active 0`).

    A share group is Stable as long as it has members. Its `Stable` entry means that every member has its
    target assignment.
    """

    version: int  # no default, so that it is always written
    type: EntryType
    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    from_state: str
    to_state: str
    generation: int  # after the change; except in a classic group, the group epoch
    reason: str
    rule: str
    cause: str  # id of the request, or the deadline, that led to the entry
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
    topics: list[str] | None = None  # of the generation
    subscriptions: dict[str, list[str]] | None = None  # topics of each member, if the members' topics differ
    assignments: dict[str, bytes] | None = None
    # In `TargetAssignmentComputed` of a streams group, standby tasks with fewer copies than configured,
    # because there are too few processes.
    partitions: dict[str, list[int]] | None = None
    superseded: str | None = None
    late_by_ms: int | None = None
    # Start of the latest rebalance before this entry, or None before the first one; from there, a reader
    # finds the members' last assignment.
    last_rebalance_at_ms: int | None = None
    replaced_member_id: str | None = None  # former id of a static member that came back
    principal: str | None = None  # of the request
    transactional_id: str | None = None
    producer_id: int | None = None
    group_type: str = "classic"  # the group's protocol after the entry: classic, consumer, share or streams
    assignment_epoch: int | None = None  # epoch of the target assignment
    member_epoch: int | None = None
    member_state: str | None = None
    assignor_name: str | None = None
    assigned: dict[str, list[int]] | None = None  # in `MemberReconciled`, partitions that the member may use
    # In `MemberReconciled`, partitions that the member has to give up.
    revoking: dict[str, list[int]] | None = None
    # In `MemberReconciled`, partitions that the member gets after others have given them up.
    awaiting: dict[str, list[int]] | None = None
    # New targets of members; in `GroupConverted`, their partitions in the new protocol.
    targets: dict[str, dict[str, list[int]]] | None = None
    # Duration of the rebalance (`Stable`), or time from a member's response with `revoking` to its
    # acknowledgement, or from the request to initialize share partitions to the result.
    took_ms: int | None = None
    # In `TargetAssignmentComputed`, number of partitions that move between members.
    moved_partitions: int | None = None
    # The entry follows from records of the cluster's own coordinator (docs/observe.md); they do not show when
    # a rebalance of a classic group began, so `PreparingRebalance` has the latest possible time.
    observed: bool = False
    # A poll found the group rebalancing: the rebalance began at most this long before `at_ms`.
    within_ms: int | None = None
    error_code: int | None = None  # with which the share coordinator refused a task
    process_id: str | None = None  # of a streams group's member, set when it joins


# Committed and pending offsets, and their changes.


LogPosition = tuple[int, int]
"""The position of a request in its partition of the log: the offset of its record, and its index in the pack,
or 0. Positions compare in the log's order.
"""


NO_POSITION: LogPosition = (-1, 0)
"""The position of an offset whose request is unknown. It precedes every request."""


class Offset(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A committed offset of one partition, or an offset that is pending in a transaction."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None  # None unless the client chose a retention time
    topic_id: bytes | None  # the topic's UUID, None if unknown; bytes decode in half the time
    position: LogPosition = NO_POSITION  # of the commit in the log


class OffsetChange(Struct, frozen=True):
    """The new committed offset of a partition, or None if the offset was removed."""

    topic: str
    partition: int
    offset: Offset | None


class MarkerOutcome(StrEnum):
    """The effect of a marker on offsets that are pending in a transaction of its producer."""

    COMMIT = "commit"  # the marker ends their transaction
    ABORT = "abort"  # the marker ends their transaction
    DROPPED = "dropped"  # their transaction ended without a marker, so it was not committed
    IGNORED = "ignored"  # the marker belongs to an earlier transaction
