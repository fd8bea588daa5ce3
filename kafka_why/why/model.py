"""The data of a report on a group's rebalances. Times are milliseconds since 1970, durations milliseconds.

The data is derived from the group's history: entries about its changes, from a coordinator of this project.
An observed group is one of the cluster's own coordinator; its entries are inferred from `__consumer_offsets`,
brokers' logs or polls. A group "with epochs" is a consumer, share or streams group.

None means that the history does not have the value: retention may have deleted its beginning, entries may be
missing, and only assignments of Kafka's consumer can be decoded.
"""

from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.kafka.history import TaskState


class CauseKind(StrEnum):
    """The kinds of causes of a rebalance."""

    MEMBER_JOINED = "member joined"
    MEMBER_LEFT = "member left"
    MEMBER_GONE = "member left or expired"
    MEMBERS_CHANGED = "members changed"
    JOINED_AGAIN = "a member joined again"
    SESSION_TIMEOUT = "session timeout"
    SYNC_TIMEOUT = "no SyncGroup in time"
    REQUEST_TOO_LARGE = "a SyncGroup was too large"
    NOT_STORED = "assignment was not stored"
    OVER_SIZE = "group was over its size"
    METADATA_CHANGED = "member changed its metadata"
    LEADER_REJOINED = "leader joined again"
    STATIC_MEMBER_RETURNED = "static member came back"
    SUBSCRIPTION_CHANGED = "member changed its subscription"
    TOPICS_CHANGED = "topics changed"
    PATTERN_RESOLVED = "pattern matches other topics"
    REBALANCE_TIMEOUT = "did not give partitions up in time"
    JOIN_TIMEOUT = "no JoinGroup in time"
    CONVERTED = "group changed its protocol"
    MEMBER_CHANGED = "member changed its settings"
    SETTINGS_CHANGED = "settings of the assignment changed"
    PARTITIONS_INITIALIZED = "share partitions were initialized"
    OFFSETS_ALTERED = "offsets were altered"
    COORDINATED_ELSEWHERE = "group was coordinated elsewhere"
    UNKNOWN = "not in the history"


class RebalanceOutcome(StrEnum):
    """The way a rebalance ended, or that it has not ended."""

    STABLE = "Stable"
    EMPTY = "Empty"
    # The next rebalance began before the leader's assignment arrived or, in a share group, before every
    # member had its target assignment.
    SUPERSEDED = "superseded"
    CONVERTED = "converted"  # the group changed its protocol before the rebalance ended
    UNDER_WAY = "under way"
    UNKNOWN = "not in the history"


class Cause(Struct, frozen=True, kw_only=True):
    """The cause of a rebalance."""

    kind: CauseKind
    reason: str
    trigger: str | None = None  # id of the request, or the deadline
    principal: str | None = None  # of the request
    member_ids: list[str] = []  # several if one request or deadline removed several members
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    client_reason: str | None = None  # sent by the client itself (KIP-800)


class Joined(Struct, frozen=True, gc=False):
    """A member that joined `after_ms` after the rebalance began."""

    member_id: str
    after_ms: int


class Removed(Struct, frozen=True, gc=False):
    """A member that was removed, or a member id that a client received but never joined with."""

    member_id: str
    after_ms: int  # since the rebalance began
    reason: str
    client_reason: str | None = None


class MemberMoves(Struct, frozen=True, gc=False):
    """The partitions that one member gained and lost, by topic."""

    member_id: str
    before: int  # number of partitions before the rebalance
    after: int  # number of partitions after it
    gained: dict[str, list[int]]
    lost: dict[str, list[int]]


class Moves(Struct, frozen=True, kw_only=True):
    """The numbers of partitions that changed owners in a rebalance, and each member's changes."""

    partitions: int  # assigned after the rebalance
    moved: int  # their last owner was another member; defined in `kafka_why.why.moves`
    # Moves that an even split did not need, also defined there. None for a group with epochs, because its
    # history lacks subscriptions.
    needless: int | None
    fresh: int  # had no owner before
    released: int  # have no owner afterwards
    members: list[MemberMoves]


class Idle(Struct, frozen=True):
    """The partitions that had no consumer during a rebalance."""

    partitions: int  # their number
    partition_ms: int  # sum of the times without a consumer
    longest_ms: int  # longest of these times


class EpochChange(Struct, frozen=True, kw_only=True):
    """A change of the group epoch. Times are since the rebalance began."""

    epoch: int
    after_ms: int
    cause: Cause
    # When the first target assignment of this or a later epoch was computed; None if there is none yet.
    target_after_ms: int | None
    assignor_name: str | None
    changed_targets: int | None  # number of members whose target this assignment changed
    # In a share group, time from the last target assignment to this change. The next target assignment is
    # computed when the assignment interval has passed.
    last_target_before_ms: int | None = None
    # Standby tasks of a streams group with too few copies, by subtopology.
    missing_standbys: dict[str, list[int]] = {}


class TaskMoves(Struct, frozen=True, kw_only=True):
    """The tasks of a streams group that a rebalance gave to other members.

    `promoted` and `without_copy` have active tasks: their numbers by subtopology.
    """

    # The new member's process had the task before, mostly as a standby, so its state is there.
    promoted: dict[str, list[int]]
    # The new member's process has no copy, so a stateful task restores its state from its changelog topics.
    without_copy: dict[str, list[int]]
    standby: int  # number of standby tasks after the rebalance
    new_standby: int  # of these, in processes that did not have the task before
    # By task (`0_3`), how much of its state the new member's process had when the target gave it the task.
    # None if the history does not have it. Tasks without state are left out.
    states: dict[str, TaskState] | None = None


class NotCreated(Struct, frozen=True, kw_only=True):
    """A failure to create missing internal topics of a streams group, tried with a member's rights."""

    after_ms: int  # since the rebalance began
    member_id: str
    principal: str | None
    topics: list[str]
    reason: str


class StreamsNow(Struct, frozen=True, kw_only=True):
    """The reasons why members of a streams group have no tasks, and why the application may end."""

    not_ready: str | None = None  # why the topology is not valid
    not_ready_since_ms: int = 0  # since when the topology is not valid
    shutdown_requested_by: str | None = None
    shutdown_at_ms: int = 0
    # The first target waits for more members until this time, which may be in the past.
    delayed_until_ms: int | None = None
    not_created: NotCreated | None = None  # the latest, since `not_ready_since_ms`


class AwaitedPartitions(Struct, frozen=True):
    """Partitions that a member waited for, by topic."""

    partitions: dict[str, list[int]]
    of_member_id: str | None  # the holder; None if it had left


class Progress(Struct, frozen=True, kw_only=True):
    """One member's progress to its target assignment."""

    member_id: str
    revoked: dict[str, list[int]]  # that the coordinator asked the member to give up
    # Longest time that the client took; None if it was not asked, or has not given up all.
    revoking_ms: int | None
    waited_for: list[AwaitedPartitions]  # that other members had to give up first
    waiting_ms: int | None  # until the member had all of them; None if it still waits, or did not wait
    # From the beginning of the rebalance until the member reached its target; None if it has not.
    settled_after_ms: int | None
    # From the coordinator's request until the member is removed if it does not give up partitions.
    fenced_after_ms: int | None = None


class ConnectWork(Struct, frozen=True, kw_only=True):
    """The assignment of a worker of Kafka Connect: connectors, and tasks by connector."""

    connectors: list[str]
    tasks: dict[str, list[int]]
    revoked_connectors: list[str]
    revoked_tasks: dict[str, list[int]]
    is_incremental: bool  # the worker keeps its earlier connectors and tasks, except the revoked ones
    delay_ms: int  # how long the work of a lost worker is not reassigned, because it may return; or 0
    error: int  # code of Connect's protocol, or 0


class StreamsTasks(Struct, frozen=True, kw_only=True):
    """The tasks of a thread of Kafka Streams."""

    active: list[str]
    standby: list[str]
    next_rebalance_ms: int | None  # when the thread will ask for a rebalance: 0 at once, None never
    error: str | None  # name or number of a Kafka AssignorError


class ClientRole(StrEnum):
    """The role in a rebalance of a member whose client pushed metrics."""

    CAUSE = "cause"  # the rebalance began because the member left or expired
    REMOVED = "removed"  # the member was removed during the rebalance
    AWAITED = "awaited"  # the other members waited until it rejoined


class ClientMetrics(Struct, frozen=True, kw_only=True, gc=False):
    """The metrics that a member's client pushed (KIP-714), with times relative to a moment of a rebalance.

    The moment is when the member left, expired or was removed or, for an awaited member, when the rebalance
    began. Times are in ms, but clients report the age of their last poll in whole seconds.
    """

    about: ClientRole  # the member's role in the rebalance
    member_id: str
    said_before_ms: int  # time from the push to the moment; negative if the push is later
    last_poll_before_ms: int | None  # time from the last poll to the moment; None if unknown
    last_heartbeat_before_ms: int | None  # time from the last heartbeat to the moment; None if unknown
    # Share of its time that the application spent in poll(); librdkafka reports nothing else.
    poll_idle_ratio: float | None
    max_poll_interval_ms: int | None  # with which the member joined; None if unknown
    # True if `last_poll_before_ms` is about the last poll before the moment. False if the client may have
    # polled again between the push and the moment.
    is_certain: bool


class ShareStateRequest(Struct, frozen=True, kw_only=True):
    """An unfinished request to the share coordinator, to initialize partitions or to delete their state."""

    task: str | None  # id of the task for the share coordinator; None in an observed group
    is_deletion: bool
    since_ms: int  # when it was sent
    partitions: dict[str, list[int]]  # by topic
    error_code: int | None  # of the last response
    is_open: bool  # False if the task has ended with the error


class SharePartitionStates(Struct, frozen=True, kw_only=True):
    """The states of a share group's partitions."""

    initialized: int  # their number
    idle: dict[str, list[int]]  # initialized partitions that no member has, although the group has members
    asked: list[ShareStateRequest]  # unfinished requests, the oldest first


class Rebalance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rebalance: from PreparingRebalance until the group is Stable or Empty, or the next rebalance begins.

    In a consumer, share or streams group a rebalance begins with a change of the group epoch, and ends when
    every member has its target assignment. Generations are group epochs. Members do not rejoin, so the fields
    about joining are empty. In a share group a rebalance has one target assignment. The change that requires
    the next target assignment supersedes the rebalance.

    In a streams group partitions are tasks, with `active 0` (role and subtopology) instead of a topic.
    """

    number: int
    incarnation: str  # id of the group's life, from its creation to its deletion
    began_ms: int
    ended_ms: int | None
    outcome: RebalanceOutcome
    cause: Cause
    from_state: str
    generation_from: int
    generation_to: int | None
    preparing_ms: int | None  # until the generation was formed
    completing_ms: int | None  # from then to the end
    duration_ms: int | None  # sum of the two
    # The entry that began the rebalance is missing, and `began_ms` is the first known time.
    beginning_lost: bool
    deadline_ms: int | None
    extensions: int  # how often the time for members to join was extended
    # Members that had to join (again). If `began_within_ms` is set, they are inferred: the last poll saw
    # these members of the previous generation, and they are not in the new generation.
    waited_for: list[str]
    last: str | None  # the last of these to join or to be removed; with epochs, the last to reach its target
    joined: list[Joined]
    removed: list[Removed]
    members: list[str]
    unsynced: list[str]  # without a SyncGroup request when the group became Stable
    leader_id: str | None
    protocol_name: str | None
    moves: Moves | None  # of active tasks in a streams group
    idle: Idle | None
    assignment_bytes: dict[str, int] | None  # sizes by member, if assignments cannot be decoded
    converted: str | None = None  # the group's change of protocol during the rebalance
    has_tasks: bool = False  # a streams group
    is_shared: bool = False  # a share group
    epochs: list[EpochChange] = []  # changes of the group epoch
    progress: list[Progress] = []
    connect: dict[str, ConnectWork] = {}  # by member, assignments of Kafka Connect
    streams: dict[str, StreamsTasks] = {}  # by member, assignments of Kafka Streams' classic protocol
    # Inferred from records of the cluster's own coordinator (docs/observe.md), which do not show when a
    # classic group's rebalance began.
    observed: bool = False
    clients_said: list[ClientMetrics] = []  # metrics that clients pushed to a gateway
    # Polls saw the group rebalance: it began at most this long before `began_ms`.
    began_within_ms: int | None = None
    # The rebalance began because a member left, and its client (same client id and host) came back as this
    # member.
    returned: Joined | None = None
    tasks: TaskMoves | None = None  # where the state of active tasks was
    not_created: list[NotCreated] = []  # different failures to create internal topics, in order

    @property
    def is_begin_unknown(self) -> bool:
        return self.observed and self.beginning_lost

    @property
    def is_longer_than_known(self) -> bool:
        """True if the rebalance may have begun before `began_ms`, or if its end is unknown."""
        return self.is_begin_unknown or self.outcome is RebalanceOutcome.UNKNOWN or bool(self.began_within_ms)

    def end_ms(self, now_ms: int) -> int:
        """Return the time of its end: `now_ms` while it is under way, or its beginning if the end is lost."""
        if self.ended_ms is not None:
            return self.ended_ms
        return max(now_ms, self.began_ms) if self.outcome is RebalanceOutcome.UNDER_WAY else self.began_ms

    @property
    def has_epochs(self) -> bool:
        """True if the group is a consumer, share or streams group."""
        return bool(self.epochs or self.progress)
