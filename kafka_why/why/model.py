"""The data of a report on rebalances. Times are milliseconds since the epoch, durations milliseconds.

None means that the history does not have the value: retention may have deleted its beginning, entries may be
missing, and only assignments of Kafka's consumer can be decoded.
"""

from enum import StrEnum

from msgspec import Struct


class CauseKind(StrEnum):
    """The kinds of causes with which a rebalance can begin."""

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
    """The end of a rebalance. CONVERTED: the group changed its protocol before the rebalance ended.

    SUPERSEDED: the next rebalance began before the leader's assignment arrived or, in a share group, before
    every member had its target assignment.
    """

    STABLE = "Stable"
    EMPTY = "Empty"
    SUPERSEDED = "superseded"
    CONVERTED = "converted"
    UNDER_WAY = "under way"
    UNKNOWN = "not in the history"


class Cause(Struct, frozen=True, kw_only=True):
    """The cause of a rebalance. `trigger` is the id of the request, or the deadline, that caused it.

    `principal` is the principal of the request, or None. `client_reason` is the reason that the client itself
    sent (KIP-800), or None. `member_ids` are several if one request or deadline removed several members.
    """

    kind: CauseKind
    reason: str
    trigger: str | None = None
    principal: str | None = None
    member_ids: list[str] = []
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    client_reason: str | None = None


class Joined(Struct, frozen=True, gc=False):
    """A member that joined `after_ms` after the rebalance began."""

    member_id: str
    after_ms: int


class Removed(Struct, frozen=True, gc=False):
    """A member, or a member id that never joined, that was removed `after_ms` after the rebalance began."""

    member_id: str
    after_ms: int
    reason: str
    client_reason: str | None = None


class MemberMoves(Struct, frozen=True, gc=False):
    """The partitions that one member `gained` and `lost`, by topic. `before` and `after` are its numbers of
    partitions.
    """

    member_id: str
    before: int
    after: int
    gained: dict[str, list[int]]
    lost: dict[str, list[int]]


class Moves(Struct, frozen=True, kw_only=True):
    """The numbers of partitions that changed owners in a rebalance, and each member's changes.

    `partitions` are assigned after the rebalance. `kafka_why.why.moves` defines `moved` and `needless`.
    `fresh` partitions had no owner before, and `released` partitions have no owner after it. `needless` is
    None for a group with epochs, because its history does not have the subscriptions.
    """

    partitions: int
    moved: int
    needless: int | None
    fresh: int
    released: int
    members: list[MemberMoves]


class Idle(Struct, frozen=True):
    """The number of partitions that had no consumer during a rebalance, the sum of the times that they had
    none, and the longest of these times.
    """

    partitions: int
    partition_ms: int
    longest_ms: int


class EpochChange(Struct, frozen=True, kw_only=True):
    """A change of the group epoch, `after_ms` after the rebalance began.

    `target_after_ms` is the time from the beginning of the rebalance until a target assignment of this epoch,
    or of a later one, was computed, or None if it is not computed yet. `changed_targets` is the number of
    members whose target this assignment changed. In a share group a new target assignment waits for the
    assignment interval. There `last_target_before_ms` is the time from the last target assignment to this
    change, or None if unknown. `missing_standbys` are standby tasks of a streams group with too few
    copies, by subtopology.
    """

    epoch: int
    after_ms: int
    cause: Cause
    target_after_ms: int | None
    assignor_name: str | None
    changed_targets: int | None
    last_target_before_ms: int | None = None
    missing_standbys: dict[str, list[int]] = {}


class TaskMoves(Struct, frozen=True, kw_only=True):
    """The active tasks of a streams group that a rebalance gave to other members, by subtopology, and the
    state that they found there.

    `promoted`: the process of the new member had the task before, mostly as a standby, so its state is there.
    `without_copy`: it did not, so a stateful task restores its state from its changelog topics. `standby` is
    the number of standby tasks after the rebalance, and `new_standby` that of those in processes that did not
    have the task before.
    """

    promoted: dict[str, list[int]]
    without_copy: dict[str, list[int]]
    standby: int
    new_standby: int


class StreamsNow(Struct, frozen=True, kw_only=True):
    """The reasons why members of a streams group have no tasks, and why the application may end. `not_ready`
    says why the topology is not valid. The times are those since when this holds. Until `delayed_until_ms`,
    which may be over, the first target waits for more members.
    """

    not_ready: str | None = None
    not_ready_since_ms: int = 0
    shutdown_requested_by: str | None = None
    shutdown_at_ms: int = 0
    delayed_until_ms: int | None = None


class AwaitedPartitions(Struct, frozen=True):
    """Partitions, by topic, that a member waited for. `of_member_id` is their holder, or None if the holder
    had left.
    """

    partitions: dict[str, list[int]]
    of_member_id: str | None


class Progress(Struct, frozen=True, kw_only=True):
    """One member's progress to its target assignment.

    The coordinator asked the member to give up the partitions `revoked`. `revoking_ms` is the longest time
    that the client took, or None if it has not given up all of them, or was never asked. `waited_for` are
    partitions that other members had to give up first. `waiting_ms` is the time until the member had all of
    them, or None if it still waits. `settled_after_ms` is the time from the beginning of the rebalance until
    the member reached its target, or None if it has not. While the member has to give up partitions,
    `fenced_after_ms` is the time from the coordinator's request until the member is removed if it does not.
    """

    member_id: str
    revoked: dict[str, list[int]]
    revoking_ms: int | None
    waited_for: list[AwaitedPartitions]
    waiting_ms: int | None
    settled_after_ms: int | None
    fenced_after_ms: int | None = None


class ConnectWork(Struct, frozen=True, kw_only=True):
    """The assignment of a worker of Kafka Connect: connectors, and tasks by connector.

    If `is_incremental`, the worker also keeps its earlier connectors and tasks, except the revoked ones.
    `delay_ms` is how long the work of a worker that left is not reassigned, because the worker may return, or
    0. `error` is an error code of Connect's protocol, or 0.
    """

    connectors: list[str]
    tasks: dict[str, list[int]]
    revoked_connectors: list[str]
    revoked_tasks: dict[str, list[int]]
    is_incremental: bool
    delay_ms: int
    error: int


class StreamsTasks(Struct, frozen=True, kw_only=True):
    """The tasks of a thread of Kafka Streams. `next_rebalance_ms` is when the thread will ask for a
    rebalance, in milliseconds since the epoch: 0 for at once (a follow-up rebalance), or None for never.
    `error` is the name or the number of a Kafka AssignorError, or None.
    """

    active: list[str]
    standby: list[str]
    next_rebalance_ms: int | None
    error: str | None


class ClientRole(StrEnum):
    """The role in a rebalance of a member whose client pushed metrics. CAUSE: the rebalance began because the
    member left or expired. REMOVED: the member was removed during the rebalance. AWAITED: the other members
    waited until it rejoined.
    """

    CAUSE = "cause"
    REMOVED = "removed"
    AWAITED = "awaited"


class ClientMetrics(Struct, frozen=True, kw_only=True, gc=False):
    """The metrics that a member's client pushed (KIP-714), relative to a moment. The moment is when the
    member left, expired or was removed or, for an awaited member, when the rebalance began.

    The client pushed the metrics `said_before_ms` before the moment (after it if negative). If `is_certain`,
    the poll was the client's last poll before the moment. Otherwise the client may have polled and sent
    heartbeats since the push. Clients report whole seconds. librdkafka reports only `poll_idle_ratio`, the
    share of its time that the application spent in poll(). `max_poll_interval_ms` is the value with which the
    member joined, or None if unknown.
    """

    about: ClientRole
    member_id: str
    said_before_ms: int
    last_poll_before_ms: int | None
    last_heartbeat_before_ms: int | None
    poll_idle_ratio: float | None
    max_poll_interval_ms: int | None
    is_certain: bool


class ShareStateRequest(Struct, frozen=True, kw_only=True):
    """An unfinished request to the share coordinator, sent at `since_ms`, to initialize `partitions` (by
    topic) or to delete their state.

    `task` is None in an observed group. `error_code` is the error of the last response, or None if there was
    no error. `is_open` is False if the task has ended with that error.
    """

    task: str | None
    is_deletion: bool
    since_ms: int
    partitions: dict[str, list[int]]
    error_code: int | None
    is_open: bool


class SharePartitionStates(Struct, frozen=True, kw_only=True):
    """The states of a share group's partitions. `initialized` is the number of initialized partitions. `idle`
    are initialized partitions that no member has, although the group has members. `asked` are the unfinished
    requests, oldest first.
    """

    initialized: int
    idle: dict[str, list[int]]
    asked: list[ShareStateRequest]


class Rebalance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rebalance: from PreparingRebalance until the group is Stable or Empty, or the next rebalance
    begins.

    `preparing_ms` is the time until the generation was formed, `completing_ms` the time from then to the end,
    and `duration_ms` their sum. `waited_for` are the members that had to join (again), and `last` is the last
    of these to join or to be removed. `unsynced` are the members without a SyncGroup request when the group
    became Stable. If assignments cannot be decoded, `assignment_bytes` has their sizes by member. `connect`
    and `streams`, by member, are the assignments of Kafka Connect and Kafka Streams. If `beginning_lost`, the
    entry that began the rebalance is missing, and `began_ms` is the first known time.

    In a consumer, share or streams group a rebalance begins with a change of the group epoch, and ends when
    every member has its target assignment. Generations are group epochs. The rebalance has `epochs`, the
    changes of the epoch, and `progress`; `last` is the last member to reach its target. Members do not
    rejoin, so the fields about joining are empty. In a share group a rebalance has one target assignment. The
    change that requires the next target assignment supersedes the rebalance.

    If `has_tasks`, the group is a streams group, and partitions are tasks, with `active 0` (role and
    subtopology) in place of a topic. Then `moves` counts active tasks, and `tasks` says where their state
    was. If `is_shared`, the group is a share group. `converted` describes the group's change of protocol
    during the rebalance, or is None. `clients_said` are metrics that clients
    pushed to a gateway. If the rebalance began because a member left, and its client came back later as a new
    member (same client id and host), `returned` is the new member.

    If `observed`, the rebalance is inferred from the records of the cluster's own coordinator
    (docs/observe.md). For a classic group the records do not show when the rebalance began. If polls saw the
    group rebalance, it began at most `began_within_ms` before `began_ms`, and `waited_for` is inferred: the
    members of the previous generation that were in the group at the last poll but not in the new generation.
    """

    number: int
    incarnation: str
    began_ms: int
    ended_ms: int | None
    outcome: RebalanceOutcome
    cause: Cause
    from_state: str
    generation_from: int
    generation_to: int | None
    preparing_ms: int | None
    completing_ms: int | None
    duration_ms: int | None
    beginning_lost: bool
    deadline_ms: int | None
    extensions: int
    waited_for: list[str]
    last: str | None
    joined: list[Joined]
    removed: list[Removed]
    members: list[str]
    unsynced: list[str]
    leader_id: str | None
    protocol_name: str | None
    moves: Moves | None
    idle: Idle | None
    assignment_bytes: dict[str, int] | None
    converted: str | None = None
    has_tasks: bool = False
    is_shared: bool = False
    epochs: list[EpochChange] = []
    progress: list[Progress] = []
    connect: dict[str, ConnectWork] = {}
    streams: dict[str, StreamsTasks] = {}
    observed: bool = False
    clients_said: list[ClientMetrics] = []
    began_within_ms: int | None = None
    returned: Joined | None = None
    tasks: TaskMoves | None = None

    @property
    def is_begin_unknown(self) -> bool:
        """True if the rebalance is observed and its beginning is unknown."""
        return self.observed and self.beginning_lost

    @property
    def is_longer_than_known(self) -> bool:
        """True if the rebalance may have begun before `began_ms`, or if its end is unknown."""
        is_end_unknown = self.outcome is RebalanceOutcome.UNKNOWN
        return self.is_begin_unknown or is_end_unknown or bool(self.began_within_ms)

    @property
    def has_epochs(self) -> bool:
        """True if the group is a consumer, share or streams group."""
        return bool(self.epochs or self.progress)
