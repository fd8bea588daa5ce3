"""A consumer group: its states, its members, and the questions one asks of them.

This file holds data and queries only; what changes a group is in `state.kafka`. Deadlines stand with what
they are for (a member, a pending id, the running join or sync phase), so a timer for something that is gone
cannot exist. The order of the fields here is the layout of the stored state: a change of it is a new version
in `checkpoints.codec`.
Source: ClassicGroup.java, ClassicGroupMember.java, ClassicGroupState.java.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from assignors.kafka.consumer_protocol import PROTOCOL_TYPE
from state.errors import ErrorCode
from state.kafka.requests import Protocol, ReplyTo


class GroupState(StrEnum):
    """Where a group stands in its rebalance.

    Empty: no members. A join opens PreparingRebalance.
    PreparingRebalance: joins are parked until every member is in, or time is up; then CompletingRebalance
    (or Empty).
    CompletingRebalance: the generation is formed, syncs are parked until the leader brings the assignment;
    then Stable.
    Stable: every member can have its assignment. A join that changes something, a leave or an expiry opens
    the next round.
    Kafka's fifth state, Dead, is a group that is no more: here that is no state at all, only a word for it.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


DEAD = "Dead"

LEGAL_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
}


class Member(Struct, array_like=True, forbid_unknown_fields=True):
    """One member. `heartbeat_deadline_ms` is None while only an answer of ours, not a heartbeat of its, is
    due.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[Protocol]
    heartbeat_deadline_ms: int | None = None
    assignment: bytes = b""
    is_new: bool = False
    pending_sync: bool = False  # joined this generation, has not asked for its assignment yet
    parked_join: ReplyTo | None = None
    parked_sync: ReplyTo | None = None

    def waits(self) -> bool:
        """Whether the member waits for an answer of ours."""
        return self.parked_join is not None or self.parked_sync is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for one protocol, empty where it does not offer it."""
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")


class PendingMember(Struct, array_like=True, forbid_unknown_fields=True):
    """An id that was handed out with MEMBER_ID_REQUIRED and has not joined yet (KIP-394)."""

    client_id: str
    client_host: str
    heartbeat_deadline_ms: int


class JoinPhase(Struct, array_like=True, forbid_unknown_fields=True):
    """The timer of PreparingRebalance. `initial_remaining_ms` is set in an Empty group's first round alone:
    how much longer the initial delay may still be extended after this timer.
    """

    deadline_ms: int
    delay_ms: int
    initial_remaining_ms: int | None


class Offset(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is committed for one partition. `expire_at_ms` is set where the committer chose its own retention
    time. `topic_id` is the topic that it was committed for, None while that is not known: the 16 bytes of the
    UUID, which are decoded in half the time.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None
    topic_id: bytes | None


class Group(Struct, array_like=True, forbid_unknown_fields=True, tag="Kafka"):
    """All the coordinator knows of one group.

    `clock_ms` is the time of the last thing that happened to the group; `last_fired_ms` the latest deadline
    that fired. `quarantined` holds why its timers were stopped after a fault of ours, None in a healthy
    group. The deadlines of a quarantined group move with its clock.
    """

    group_id: str
    incarnation: str  # the id of the request that created it
    seq: int = 0  # history entries so far
    clock_ms: int = 0
    last_fired_ms: int = 0
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState | None = None
    state_timestamp_ms: int = 0
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = {}
    static_members: dict[str, str] = {}  # group.instance.id -> member id
    pending_members: dict[str, PendingMember] = {}
    new_member_added: bool = False
    join_phase: JoinPhase | None = None
    sync_deadline_ms: int | None = None
    last_rebalance_at_ms: int | None = None
    last_rebalance_reason: str = ""
    quarantined: str | None = None
    # The topics of this generation's members, None where they cannot be known: ClassicGroup.subscribedTopics
    subscribed_topics: list[str] | None = None
    offsets: dict[str, dict[int, Offset]] = {}  # by topic and partition
    retention_deadline_ms: int | None = None
    # Of topics that the coordinator is to assign: as this generation has it, and as JoinGroups told since.
    partitions_per_topic: dict[str, int] = {}
    reported_partition_counts: dict[str, int] = {}
    # Ids of topics that TopicMetadata showed to be deleted or replaced, the latest last.
    deleted_topic_ids: list[bytes] = []

    def is_initial_rebalance(self) -> bool:
        """Whether the running PreparingRebalance began at Empty."""
        return self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY

    def is_consumer_group(self) -> bool:
        """Whether members speak the protocol of Kafka's consumer, whose metadata the coordinator can read."""
        return self.protocol_type == PROTOCOL_TYPE

    def subscribed_of(self, topics: Iterable[str]) -> set[str]:
        """Those of the topics that a member subscribes to; where subscriptions cannot be read, a consumer
        group may subscribe to all of them.
        """
        if self.subscribed_topics is None:
            return set(topics) if self.is_consumer_group() else set()
        return set(self.subscribed_topics).intersection(topics)

    def members_not_rejoined(self) -> list[Member]:
        return [m for m in self.members.values() if m.parked_join is None]

    def has_all_members_joined(self) -> bool:
        """Whether nobody is waited for any more: no member, and no pending id either."""
        return not self.pending_members and all(m.parked_join is not None for m in self.members.values())

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member, 0 without members."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def supports_protocols(self, protocol_type: str, protocols: list[Protocol]) -> bool:
        """Whether a member offering these could be in the group (rows U1, U2)."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        # Sets, so that a name a member lists twice counts once (Kafka counts it twice, and then finds no
        # protocol).
        offered_by = Counter(name for m in self.members.values() for name in {p.name for p in m.protocols})
        return any(offered_by[p.name] == len(self.members) for p in protocols)

    def select_protocol(self) -> str:
        """The protocol of the next generation: each member votes for the first of its own that all support.

        Ties go to the one listed first by the member that joined first (Kafka leaves them to its map's
        order).
        """
        members = list(self.members.values())
        shared = set.intersection(*({p.name for p in m.protocols} for m in members))
        votes = Counter(next(p.name for p in m.protocols if p.name in shared) for m in members)
        listed_first = [p.name for p in members[0].protocols if p.name in shared]
        return max(listed_first, key=lambda name: votes[name])

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Kafka's common check V of a member's identity; NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if group_instance_id is not None:
            mapped = self.static_members.get(group_instance_id)
            if mapped is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if mapped != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in; the first sets the protocol type, and leads if nobody does."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending id; a leader's place falls to the member that joined first."""
        self.pending_members.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is not None and member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def parked(self) -> Iterator[ReplyTo]:
        """Every request that still waits for its answer."""
        for member in self.members.values():
            if member.parked_join is not None:
                yield member.parked_join
            if member.parked_sync is not None:
                yield member.parked_sync
