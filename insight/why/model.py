"""What is said of a group's rebalances. All times are milliseconds since the epoch, durations milliseconds.

None stands for what the history does not say: its beginning may be deleted by retention, entries may be
missing, and assignments that are not those of Kafka's consumer are bytes.
"""

from enum import StrEnum

from msgspec import Struct


class CauseKind(StrEnum):
    """What can open a rebalance."""

    MEMBER_JOINED = "member joined"
    MEMBER_LEFT = "member left"
    SESSION_TIMEOUT = "session timeout"
    SYNC_TIMEOUT = "no SyncGroup in time"
    METADATA_CHANGED = "member changed its metadata"
    LEADER_REJOINED = "leader joined again"
    STATIC_MEMBER_RETURNED = "static member came back"
    UNKNOWN = "not in the history"


class Outcome(StrEnum):
    """How a rebalance ended. SUPERSEDED: the next began before the assignment was there."""

    STABLE = "Stable"
    EMPTY = "Empty"
    SUPERSEDED = "superseded"
    UNDER_WAY = "under way"
    UNKNOWN = "not in the history"


class Cause(Struct, frozen=True, kw_only=True):
    """Why a rebalance began. `trigger` is the request id or the deadline that led to it, `client_reason`
    what the client itself said (KIP-800); several members where one request or deadline took out several.
    """

    kind: CauseKind
    reason: str
    trigger: str | None = None
    member_ids: list[str] = []
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    client_reason: str | None = None


class Joined(Struct, frozen=True):
    """A member that joined this round, so long after it began."""

    member_id: str
    after_ms: int


class Removed(Struct, frozen=True):
    """A member, or an id that never joined, that was removed so long after the rebalance began."""

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
    """What changed hands. `partitions` are those assigned afterwards; `moved`, `needless` are defined in
    `insight.why.moves`; `fresh` had no owner before, `released` have none afterwards.
    """

    partitions: int
    moved: int
    needless: int
    fresh: int
    released: int
    members: list[MemberMoves]


class Idle(Struct, frozen=True):
    """Partitions that nobody consumed during a rebalance, their times added up, and the longest of them."""

    partitions: int
    partition_ms: int
    longest_ms: int


class Rebalance(Struct, frozen=True, kw_only=True):
    """From PreparingRebalance until the group is Stable or Empty, or the next rebalance begins.

    `preparing_ms` goes until the generation is formed, `completing_ms` from there on; `duration_ms` is both.
    `beginning_lost`: the history begins, or goes on after missing entries, in the middle of it, and
    `began_ms` is the first that is known. `waited_for` are the members that had to join (again), `last` the
    one of them that came, or was given up, last. `unsynced` had not asked for their assignment when the group
    became Stable. `assignment_bytes` by member stands where assignments cannot be read as partitions.
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
