"""The data of a report on rebalances. Times are milliseconds since the epoch, durations milliseconds.

None means that the history does not have the value: retention may have deleted its beginning, entries may be
missing, and only assignments of Kafka's consumer can be decoded.
"""

from enum import StrEnum

from msgspec import Struct


class CauseKind(StrEnum):
    """The causes that can open a rebalance."""

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
    """The end of a rebalance. SUPERSEDED: the next one began before the assignment was made or, in a share
    group, before each member had it. CONVERTED: the group changed its protocol before the rebalance ended.
    """

    STABLE = "Stable"
    EMPTY = "Empty"
    SUPERSEDED = "superseded"
    CONVERTED = "converted"
    UNDER_WAY = "under way"
    UNKNOWN = "not in the history"


class Cause(Struct, frozen=True, kw_only=True):
    """The cause of a rebalance. `trigger` is the id of the request, or the deadline, that caused it.

    `principal` is the principal of the request, or None if it had none. `client_reason` is the reason that
    the client itself sent (KIP-800), or None. There are several members if one request or deadline removed
    several.
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
    """A member that joined. `after_ms` is the time since the rebalance began, or since the member left."""

    member_id: str
    after_ms: int


class Removed(Struct, frozen=True, gc=False):
    """A removed member, or an id that never joined. `after_ms` is the time since the rebalance began."""

    member_id: str
    after_ms: int
    reason: str
    client_reason: str | None = None


class MemberMoves(Struct, frozen=True, gc=False):
    """The partitions of one member by topic; `before` and `after` are counts."""

    member_id: str
    before: int
    after: int
    gained: dict[str, list[int]]
    lost: dict[str, list[int]]


class Moves(Struct, frozen=True, kw_only=True):
    """The numbers of partitions that changed owners, and each member's changes.

    `partitions` are assigned afterwards. `kafka_why.why.moves` defines `moved` and `needless`. `fresh` had no
    owner before, and `released` have no owner afterwards. `needless` is None for a group of the consumer
    protocol, because its history does not have the subscriptions.
    """

    partitions: int
    moved: int
    needless: int | None
    fresh: int
    released: int
    members: list[MemberMoves]


class Idle(Struct, frozen=True):
    """Partitions without a consumer during a rebalance, the sum of their times, and the longest time."""

    partitions: int
    partition_ms: int
    longest_ms: int


class EpochChange(Struct, frozen=True, kw_only=True):
    """A change of the group epoch. Times are since the beginning of the rebalance.

    `target_after_ms` is the time of the target assignment of this epoch or a later one, or None if there is
    none yet. `changed_targets` is the number of members whose target this assignment changed. In a share
    group `last_target_before_ms` is how long before this change the last target was computed, or None if
    unknown: the next target has to wait for the assignment interval. `missing_standbys` are standby tasks of
    a streams group with too few copies, by subtopology.
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
    says why the topology is not valid. The times are those since when this holds.
    """

    not_ready: str | None = None
    not_ready_since_ms: int = 0
    shutdown_requested_by: str | None = None
    shutdown_at_ms: int = 0


class HandedOver(Struct, frozen=True):
    """Partitions, by topic, that a member waited for, and their holder, or None if it had left."""

    partitions: dict[str, list[int]]
    of_member_id: str | None


class Progress(Struct, frozen=True, kw_only=True):
    """One member's progress to its target assignment.

    The coordinator asked the member to give up `revoked`. `revoking_ms` is the longest time from such a
    request until the client had done so, or None if it has not, or was never asked. `waited_for` are
    partitions that other members had to give up first, and `waiting_ms` is the time until the member had the
    last of them. `settled_after_ms` is the time from the beginning of the rebalance until the member reached
    its target, or None if it has not. `fenced_after_ms` is set while the member has to give up partitions:
    how long after the request it is removed if it does not.
    """

    member_id: str
    revoked: dict[str, list[int]]
    revoking_ms: int | None
    waited_for: list[HandedOver]
    waiting_ms: int | None
    settled_after_ms: int | None
    fenced_after_ms: int | None = None


class ConnectWork(Struct, frozen=True, kw_only=True):
    """The work of a worker of Kafka Connect: connectors, and tasks by connector. `is_incremental`: the worker
    also keeps its earlier work, except for what is revoked. `delay_ms` is how long the work of a worker that
    left waits for its return, or 0. `error` is an error code of Connect's protocol, or 0.
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


class About(StrEnum):
    """The role of a member whose client's metrics are reported. CAUSE: the rebalance began because it left or
    expired. REMOVED: it was removed during the rebalance. AWAITED: the others waited for it to rejoin.
    """

    CAUSE = "cause"
    REMOVED = "removed"
    AWAITED = "awaited"


class ClientSaid(Struct, frozen=True, kw_only=True, gc=False):
    """The metrics that a member's client pushed (KIP-714), relative to one moment: when the member left,
    expired or was removed or, for an awaited member, when the rebalance began.

    The client pushed the metrics `said_before_ms` before the moment (after it if negative). `is_certain`: the
    poll was the last one before the moment. Otherwise the client may have polled and sent heartbeats since
    the push. Clients report whole seconds. librdkafka reports only `poll_idle_ratio`, the share of its time
    that the application spent in poll(). `max_poll_interval_ms` is the value with which the member joined, or
    None if that is no longer known.
    """

    about: About
    member_id: str
    said_before_ms: int
    last_poll_before_ms: int | None
    last_heartbeat_before_ms: int | None
    poll_idle_ratio: float | None
    max_poll_interval_ms: int | None
    is_certain: bool


class AskedOfShares(Struct, frozen=True, kw_only=True):
    """An unfinished request to the share coordinator, sent at `since_ms`: to initialize partitions (by topic)
    or to delete their state. `task` is None in an observed group. `error_code` is the error of the last
    response, or None before the first. `is_open` is False if the task has ended with that error.
    """

    task: str | None
    is_deletion: bool
    since_ms: int
    partitions: dict[str, list[int]]
    error_code: int | None
    is_open: bool


class SharesNow(Struct, frozen=True, kw_only=True):
    """The partitions of a share group: the number of initialized ones, `idle` ones that are initialized but
    that no member has although the group has members, and the unfinished requests, oldest first.
    """

    initialized: int
    idle: dict[str, list[int]]
    asked: list[AskedOfShares]


class Rebalance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rebalance: from PreparingRebalance until the group is Stable or Empty, or the next rebalance
    begins.

    `preparing_ms` ends when the generation is formed, `completing_ms` starts there; `duration_ms` is the sum.
    `beginning_lost`: the history begins, or continues after missing entries, in the middle of the rebalance;
    `began_ms` is then the first known time. `waited_for` are the members that had to join (again). `last` is
    the last of them to join or to be removed. `unsynced` are the members without a SyncGroup request when the
    group became Stable. `assignment_bytes`, the sizes by member, is set if assignments cannot be decoded.
    `connect` and `streams`, by member, are the assignments of Kafka Connect and Kafka Streams.

    In a consumer, share or streams group a rebalance begins with a change of the group epoch, and ends when
    every member has its target assignment. Generations are group epochs. The rebalance has `epochs`, the
    changes of the epoch, and `progress`; `last` is the last member to reach its target. Members do not
    rejoin, so the fields about joining are empty. In a share group a rebalance has one target assignment: the
    change that requires the next one supersedes it.

    `has_tasks`: it is a streams group, so partitions are tasks, with `active 0` (role and subtopology) in
    place of a topic, `moves` counts active tasks, and `tasks` says where their state was. `is_shared`: it is
    a share group. `converted` describes the change of the group's protocol at the beginning of the rebalance,
    or is None. `observed`: the rebalance is inferred from the
    records of the cluster's own coordinator (docs/observe.md). For a classic group these do not show when it
    began. If polls saw the group rebalance, it began at most `began_within_ms` before `began_ms`, and
    `waited_for` is inferred: members of the previous generation that were in the group at the last poll, and
    are not in the new generation.
    `clients_said` are metrics that clients pushed to a gateway. If the rebalance began because a member left,
    and its client came back later as a new member (same client id and host), `returned` is that member.
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
    clients_said: list[ClientSaid] = []
    began_within_ms: int | None = None
    returned: Joined | None = None
    tasks: TaskMoves | None = None

    @property
    def is_begin_unknown(self) -> bool:
        """Return True if the rebalance is observed and its beginning is not known."""
        return self.observed and self.beginning_lost

    @property
    def is_longer_than_known(self) -> bool:
        """Return True if the rebalance may have begun before `began_ms`, or its end is not known."""
        is_end_unknown = self.outcome is RebalanceOutcome.UNKNOWN
        return self.is_begin_unknown or is_end_unknown or bool(self.began_within_ms)

    @property
    def has_epochs(self) -> bool:
        """Return True if the rebalance has epochs: it is of a consumer, share or streams group."""
        return bool(self.epochs or self.progress)
