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
    SESSION_TIMEOUT = "session timeout"
    SYNC_TIMEOUT = "no SyncGroup in time"
    METADATA_CHANGED = "member changed its metadata"
    LEADER_REJOINED = "leader joined again"
    STATIC_MEMBER_RETURNED = "static member came back"
    UNKNOWN = "not in the history"


class Outcome(StrEnum):
    """How a rebalance ended. SUPERSEDED: the next one began before the assignment was made."""

    STABLE = "Stable"
    EMPTY = "Empty"
    SUPERSEDED = "superseded"
    UNDER_WAY = "under way"
    UNKNOWN = "not in the history"


class Cause(Struct, frozen=True, kw_only=True):
    """Why a rebalance began. `trigger` is the id of the request, or the deadline, that caused it. `principal`
    is that of the request, None if it named none.
    `client_reason` is the reason that the client itself sent (KIP-800), None if it sent none. There are
    several members if one request or deadline removed several.
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


class Joined(Struct, frozen=True):
    """A member that joined this round, and how long after its beginning."""

    member_id: str
    after_ms: int


class Removed(Struct, frozen=True):
    """A removed member, or an id that never joined, and how long after the rebalance's beginning."""

    member_id: str
    after_ms: int
    reason: str
    client_reason: str | None = None


class MemberMoves(Struct, frozen=True):
    """One member's partitions by topic; `before` and `after` are counts."""

    member_id: str
    before: int
    after: int
    gained: dict[str, list[int]]
    lost: dict[str, list[int]]


class Moves(Struct, frozen=True, kw_only=True):
    """The partitions that changed owners. `partitions` counts those assigned afterwards. `insight.why.moves`
    defines `moved` and `needless`. `fresh` had no owner before, `released` have no owner afterwards.
    """

    partitions: int
    moved: int
    needless: int
    fresh: int
    released: int
    members: list[MemberMoves]


class Idle(Struct, frozen=True):
    """Partitions without a consumer during a rebalance, the sum of their times, and the longest time."""

    partitions: int
    partition_ms: int
    longest_ms: int


class Rebalance(Struct, frozen=True, kw_only=True):
    """A rebalance: from PreparingRebalance until the group is Stable or Empty, or the next rebalance begins.

    `preparing_ms` ends when the generation is formed, `completing_ms` starts there; `duration_ms` is the sum.
    `beginning_lost`: the history begins, or continues after missing entries, in the middle of the rebalance;
    `began_ms` is then the first known time. `waited_for` are the members that had to join (again). `last` is
    the one of them that joined, or was removed, last. `unsynced` are the members without a SyncGroup request
    when the group became Stable. `assignment_bytes`, by member, is set if assignments cannot be read.
    """

    number: int
    incarnation: str
    began_ms: int
    ended_ms: int | None
    outcome: Outcome
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
