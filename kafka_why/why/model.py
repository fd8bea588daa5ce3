"""The data of a report on rebalances. Times are milliseconds since the epoch, durations milliseconds.

None means that the history does not contain the value: retention may have deleted its beginning, entries may
be missing, and assignments of protocols other than Kafka's consumer are bytes.
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
    """The end of a rebalance. SUPERSEDED: the next one began before the assignment was made, or before each
    member of a share group had it. CONVERTED: the group changed its protocol before.
    """

    STABLE = "Stable"
    EMPTY = "Empty"
    SUPERSEDED = "superseded"
    CONVERTED = "converted"
    UNDER_WAY = "under way"
    UNKNOWN = "not in the history"


class Cause(Struct, frozen=True, kw_only=True):
    """The cause of a rebalance. `trigger` is the id of the request, or the deadline, that caused it.
    `principal` is that of the request, None if it named none. `client_reason` is the reason that the client
    itself sent (KIP-800), None if it sent none. There are several members if one request or deadline removed
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
    """A member that joined, and how long after the beginning of the rebalance, or after it had gone."""

    member_id: str
    after_ms: int


class Removed(Struct, frozen=True, gc=False):
    """A removed member, or an id that never joined, and how long after the rebalance's beginning."""

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
    """The partitions that changed owners. `partitions` counts those assigned afterwards.
    `kafka_why.why.moves` defines `moved` and `needless`. `fresh` had no owner before, `released` have no
    owner afterwards. `needless` is None for a group of the consumer protocol, whose history does not have the
    subscriptions.
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
    """A change of the group epoch. `after_ms` is the time since the beginning of the rebalance, and
    `target_after_ms` that until the target assignment of this epoch or of a later one, None if there is none
    yet. `changed_targets` is the number of members whose target this assignment changed. In a share group
    `last_target_before_ms` is the time from the target assignment before to this change, None if that is not
    known: the next one has to wait for the assignment interval.
    """

    epoch: int
    after_ms: int
    cause: Cause
    target_after_ms: int | None
    assignor_name: str | None
    changed_targets: int | None
    last_target_before_ms: int | None = None


class HandedOver(Struct, frozen=True):
    """Partitions, by topic, that a member waited for, and their holder, None if it had left."""

    partitions: dict[str, list[int]]
    of_member_id: str | None


class Progress(Struct, frozen=True, kw_only=True):
    """The way of one member to the target assignment. Times are since the beginning of the rebalance.

    `revoked` is what the coordinator asked it to give up. `revoking_ms` is the time until its client had done
    that, the longest if it was asked more than once; None if it has not, or was not asked. `waited_for` are
    the partitions that other members had to give up first, and `waiting_ms` the time until it had the last
    of them. `settled_after_ms` is None if it has not reached the target assignment.
    """

    member_id: str
    revoked: dict[str, list[int]]
    revoking_ms: int | None
    waited_for: list[HandedOver]
    waiting_ms: int | None
    settled_after_ms: int | None


class ConnectWork(Struct, frozen=True, kw_only=True):
    """The work of a worker of Kafka Connect: connectors, and tasks by connector. `is_incremental`: these are
    additions, and the worker keeps the rest, except for what is revoked. `delay_ms` is how long the work of a
    worker that left waits for its return, 0 for none. `error` is that of Connect's protocol, 0 for none.
    """

    connectors: list[str]
    tasks: dict[str, list[int]]
    revoked_connectors: list[str]
    revoked_tasks: dict[str, list[int]]
    is_incremental: bool
    delay_ms: int
    error: int


class StreamsTasks(Struct, frozen=True, kw_only=True):
    """The tasks of a thread of Kafka Streams. `next_rebalance_ms` is when it asks for a rebalance, in
    milliseconds since the epoch: 0 for at once (a follow-up rebalance), None for never. `error` is the name
    or the number of Kafka's AssignorError, None for none.
    """

    active: list[str]
    standby: list[str]
    next_rebalance_ms: int | None
    error: str | None


class About(StrEnum):
    """The subject of a client's words: its member led to the rebalance by leaving or expiring, was removed
    later, or was waited for.
    """

    CAUSE = "cause"
    REMOVED = "removed"
    AWAITED = "awaited"


class ClientSaid(Struct, frozen=True, kw_only=True, gc=False):
    """The metrics of a member's client (KIP-714). Durations end when the member left, expired or was removed;
    of a member that was waited for they end when the rebalance began. A negative `said_before_ms` is the time
    after that.

    `is_certain`: the poll was the last one before that moment. Else the client may have polled, and sent
    heartbeats, after it had said this. Clients say whole seconds, and librdkafka says nothing of polls but
    `poll_idle_ratio`, the part of its time that the application spent in poll(). `max_poll_interval_ms` is
    the one with which the member joined, None if that is no longer known.
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
    """A request to the share coordinator at `since_ms`, by topic, that is not done: to initialize
    partitions, or to delete their state. `task` is None in an observed group. `error_code` is that of the
    last answer, None before one. `is_open` is false if the task has ended with it.
    """

    task: str | None
    is_deletion: bool
    since_ms: int
    partitions: dict[str, list[int]]
    error_code: int | None
    is_open: bool


class SharesNow(Struct, frozen=True, kw_only=True):
    """The partitions of a share group: the number of those that are initialized, those of them
    that no member has while there are members, and what is asked for, the oldest first.
    """

    initialized: int
    idle: dict[str, list[int]]
    asked: list[AskedOfShares]


class Rebalance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rebalance: from PreparingRebalance until the group is Stable or Empty, or the next rebalance begins.

    `preparing_ms` ends when the generation is formed, `completing_ms` starts there; `duration_ms` is the sum.
    `beginning_lost`: the history begins, or continues after missing entries, in the middle of the rebalance;
    `began_ms` is then the first known time. `waited_for` are the members that had to join (again). `last` is
    the one of them that joined, or was removed, last. `unsynced` are the members without a SyncGroup request
    when the group became Stable. `assignment_bytes`, by member, is set if assignments cannot be read.
    `connect` and `streams`, by member, have what Kafka Connect and Kafka Streams assign, {} in other groups.

    A rebalance of a group of the consumer protocol begins with a change of the group epoch, and ends when
    every member has its target assignment. Generations are group epochs. It has `epochs`, the changes of the
    epoch, and `progress`; `last` is the member that had its target last. Members do not join again, so
    what is about joining is empty. Share and streams groups are the same, but that a rebalance of a
    share group has one target assignment: it is SUPERSEDED by the change that asks for the next one.
    `has_tasks`: it is a streams group, which has tasks in the place of partitions (`active 0`). `is_shared`:
    it is a share group. `converted` says how the group changed its protocol at the beginning of the
    rebalance, None if it did not. `observed`: it follows from the records of
    the cluster's own coordinator (docs/observe.md). Of a classic group these do not say when it began. If it
    was seen while it lasted, it began at most `began_within_ms` before `began_ms`, and `waited_for` is
    inferred: members of the generation before that were there when the group was last seen, and are gone.
    `clients_said` is what members' clients pushed to a gateway, where that takes it. `returned` is the member
    as which the client of a member that went came back: one of the same client id and host, which no other
    member had.
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

    @property
    def is_begin_unknown(self) -> bool:
        """Return True if the cluster's own coordinator has written nothing about the beginning."""
        return self.observed and self.beginning_lost

    @property
    def is_longer_than_known(self) -> bool:
        """Return True if it began before `began_ms`, or its end is not known."""
        is_end_unknown = self.outcome is RebalanceOutcome.UNKNOWN
        return self.is_begin_unknown or is_end_unknown or bool(self.began_within_ms)

    @property
    def goes_by_epochs(self) -> bool:
        """Return True if it is a consumer, share or streams group, by what the rebalance shows."""
        return bool(self.epochs or self.progress)
