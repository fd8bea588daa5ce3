"""History entries on the events topic: what happened to a group, when, and why.

An entry is identified by `(group_id, incarnation, seq)`. The incarnation distinguishes a group from earlier
groups with the same id. `seq` counts from 1 without gaps as long as the group exists. Readers can therefore
drop the duplicates of an at-least-once sink, and check that no entry is missing.
"""

from enum import StrEnum

from msgspec import Struct

DEAD = "Dead"
"""The state of a deleted group, of any type. It occurs only in responses and in the history."""


class GroupState(StrEnum):
    """The state of a classic group that exists."""

    # The group has no members. A JoinGroup starts PreparingRebalance.
    EMPTY = "Empty"
    # JoinGroups are parked until every member has joined or the rebalance timeout is over. The next state is
    # CompletingRebalance, or Empty if no member is left.
    PREPARING_REBALANCE = "PreparingRebalance"
    # The generation is formed. SyncGroups are parked until the leader sends the assignment. The next state is
    # Stable, or PreparingRebalance if a member joins, leaves or expires before.
    COMPLETING_REBALANCE = "CompletingRebalance"
    # The members have their assignment. A JoinGroup with a change, a leave or an expiry starts
    # PreparingRebalance.
    STABLE = "Stable"


LEAVE_GROUP_MEMBER_EPOCH = -1
"""The epoch in a heartbeat with which a member leaves a group with epochs."""
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2
"""The epoch in a heartbeat with which a static member leaves temporarily."""


class ConsumerGroupState(StrEnum):
    """The state of a group with epochs, which follows from its epochs and its members.

    See rows GS1 to GS4 of docs/rules-consumer.md. A share group is only Empty or Stable.
    """

    EMPTY = "Empty"  # no members
    ASSIGNING = "Assigning"  # the group epoch is greater than the epoch of the target assignment
    RECONCILING = "Reconciling"  # a member has not reached its target assignment
    STABLE = "Stable"  # every member has reached its target assignment


class MemberState(StrEnum):
    """The progress of a member towards its target assignment. Source: MemberState.java."""

    STABLE = "Stable"
    UNREVOKED_PARTITIONS = "UnrevokedPartitions"  # the member has to give up partitions first
    UNRELEASED_PARTITIONS = "UnreleasedPartitions"  # other members have to give up partitions first


class EntryType(StrEnum):
    """The types of entries. A type with the name of a state is the group's transition to this state."""

    # Types of classic groups, most of them also of groups with epochs:
    GROUP_CREATED = "GroupCreated"
    MEMBER_ID_ASSIGNED = "MemberIdAssigned"
    MEMBER_ADDED = "MemberAdded"
    MEMBER_REJOINED = "MemberRejoined"
    MEMBER_REPLACED = "MemberReplaced"
    MEMBER_REMOVED = "MemberRemoved"
    PENDING_MEMBER_REMOVED = "PendingMemberRemoved"
    JOIN_REFUSED = "JoinRefused"
    REQUEST_SUPERSEDED = "RequestSuperseded"  # a later request replaced a parked one, which gets no answer
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
    APPLIED_LATE = "AppliedLate"  # a request was applied after a later deadline had fired
    QUARANTINED = "Quarantined"  # a deadline failed, so the group's deadlines do not fire
    RELEASED = "Released"  # an operator ended the quarantine
    TAKEN_OVER = "TakenOver"  # no coordinator ran for a time, so sessions begin anew
    # Types of groups with epochs:
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
    INTERNAL_TOPICS_NOT_CREATED = "InternalTopicsNotCreated"


NOT_READY = "NotReady"
"""The state of a streams group whose topology is not valid. Source: StreamsGroupState.java."""

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
"""The values of `group_type`."""
BY_EPOCHS = frozenset((CONSUMER, SHARE, STREAMS))
"""The types of groups with epochs. Their rebalances have the same types of entries."""


TASK_STATES_MAX = 1_000
"""The maximum number of tasks in `HistoryEntry.task_states`."""


class TaskState(Struct, frozen=True, omit_defaults=True):
    """One Kafka Streams process's copy of the state of a task.

    The offsets are sums over the task's changelog topics, as a member of the process reported them last. They
    are None if not reported. Clients may report negative offsets, which are no positions.
    """

    role: str | None = None  # in which a member of the process has the task; None if no member has it
    offset: int | None = None  # up to which the copy has the changelog topics
    end_offset: int | None = None  # end of the changelog topics
    reported_before_ms: int | None = None  # time from the report to the entry


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A history entry of a Kafka group. A field is None if the entry's type does not use it.

    Partitions are by topic name, or by topic id if the name is unknown. In a streams group they are tasks, by
    role and subtopology (`active 0`).

    A share group is Stable as long as it has members. Its `Stable` entry means that every member has its
    target assignment.
    """

    version: int  # no default, so that it is always written
    type: EntryType
    group_id: str
    incarnation: str
    seq: int
    at_ms: int  # when it happened
    from_state: str  # the group's state before the entry
    to_state: str  # the group's state after the entry
    generation: int  # after the entry; in a group with epochs, the group epoch
    reason: str  # a sentence
    rule: str  # row of docs/rules*.md, or of docs/observe.md for an observed group
    cause: str  # id of the request, or the deadline, that led to the entry
    member_id: str | None = None
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    client_reason: str | None = None  # sent by the client itself (KIP-800)
    leader_id: str | None = None
    protocol_name: str | None = None
    members: list[str] | None = None  # ids of all members after the entry
    # Members without a JoinGroup in the rebalance so far; in `Stable`, members without a SyncGroup.
    waiting_for: list[str] | None = None
    deadline_ms: int | None = None  # of what the entry begins, such as the wait for members to join
    topics: list[str] | None = None  # topics to which the generation's members subscribe
    subscriptions: dict[str, list[str]] | None = None  # topics of each member, if the members' topics differ
    assignments: dict[str, bytes] | None = None  # in `Stable`, the assignment of each member
    # Partitions that the entry is about. In `TargetAssignmentComputed` of a streams group, the standby tasks
    # that have fewer copies than configured, because there are too few processes.
    partitions: dict[str, list[int]] | None = None
    superseded: str | None = None  # in `RequestSuperseded`, id of the parked request that gets no answer
    # In `AppliedLate`, time from the append of the request to the latest deadline that had fired before.
    late_by_ms: int | None = None
    # When the latest rebalance before this entry began; None before the first one. A reader that begins there
    # finds the members' last assignment.
    last_rebalance_at_ms: int | None = None
    replaced_member_id: str | None = None  # former id of a static member that came back
    principal: str | None = None  # of the request
    transactional_id: str | None = None
    producer_id: int | None = None
    group_type: str = "classic"  # the group's protocol after the entry: classic, consumer, share or streams
    assignment_epoch: int | None = None  # epoch of the target assignment
    member_epoch: int | None = None
    member_state: str | None = None  # a `MemberState`
    assignor_name: str | None = None
    assigned: dict[str, list[int]] | None = None  # in `MemberReconciled`, partitions that the member may use
    # In `MemberReconciled`, partitions that the member has to give up.
    revoking: dict[str, list[int]] | None = None
    # In `MemberReconciled`, partitions that the member gets after others have given them up.
    awaiting: dict[str, list[int]] | None = None
    # Target assignments of the members whose target changed; in `GroupConverted`, the partitions of all
    # members in the new protocol.
    targets: dict[str, dict[str, list[int]]] | None = None
    # In `Stable`, duration of the rebalance. In `MemberReconciled`, time from the response with `revoking` to
    # the member's acknowledgement. In entries about share partitions, time from the request to the result.
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
    # In `TargetAssignmentComputed` of a streams group, the copies of states that the processes of new owners
    # of active tasks have, by task (`0_3`). Tasks without state, and those above the maximum, are omitted.
    # None if no task has a new owner.
    task_states: dict[str, TaskState] | None = None


# Committed and pending offsets, and their changes.

LogPosition = tuple[int, int]
"""The position of a request in its partition of the log: the offset of its record, and its index in the
record if that is a pack of several requests, else 0. Positions compare in the log's order.
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
    # The topic's UUID, or None if unknown. Not a UUID object, because that takes twice as long to decode.
    topic_id: bytes | None
    position: LogPosition = NO_POSITION  # of the request that committed it


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
