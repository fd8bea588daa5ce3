"""A group of the classic protocol: its state, its members, and queries on them.

This file holds data and queries only; `state.kafka.classic` changes a group. A JoinGroup or SyncGroup is
parked if a later step answers it. A pending id is a member id that the coordinator has assigned and that no
member has joined with yet.

A deadline is stored with its subject (a member, a pending id, the join or sync phase), so a timer cannot
outlive its subject. The order of the fields is the layout of the stored state: a change of the order is a new
version in `checkpoints.codec`. Source: ClassicGroup.java, ClassicGroupMember.java, ClassicGroupState.java.

A row, such as Z1, is a rule of docs/rules.md.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TypeVar

from msgspec import Struct, field

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import Protocol, ReplyTo
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE
from state.kafka.group import Group, Topic, is_among, validate_instance

# Counts of the protocols that a group's members offer. Source: ClassicGroup.supportedProtocols.


K = TypeVar("K")

ProtocolNames = tuple[str, ...]
"""The distinct names of a member's protocols, in the member's order."""


class SupportedProtocols(Struct):
    """The number of members, of members by protocol name, and of members by their whole list of names.

    A name or a list without members is absent.
    """

    members: int = 0
    by_name: dict[str, int] = {}
    by_list: dict[ProtocolNames, int] = {}  # few: members of one application list the same protocols

    def add(self, protocols: list[Protocol], by: int = 1) -> None:
        """Count a member that offers these protocols, or stop counting it if `by` is -1."""
        # A name that a member lists twice counts once (Kafka counts it twice, and then finds no protocol).
        names = tuple(dict.fromkeys([protocol.name for protocol in protocols]))
        self.members += by
        _add(self.by_list, names, by)
        for name in names:
            _add(self.by_name, name, by)

    def select(self, listed_first: list[Protocol]) -> str:
        """Return the protocol with the most votes.

        Each member votes for the first of its protocols that all members support. A tie goes to the protocol
        that comes first in `listed_first`.
        """
        votes: Counter[str] = Counter()
        for names, members in self.by_list.items():
            votes[next(name for name in names if self.is_shared(name))] += members
        shared = [protocol.name for protocol in listed_first if self.is_shared(protocol.name)]
        return max(shared, key=lambda name: votes[name])

    def is_shared(self, name: str) -> bool:
        """Return True if all members offer the protocol."""
        return self.by_name.get(name, 0) == self.members


def _add(counts: dict[K, int], key: K, by: int) -> None:
    """Add `by` to the count of this key, and remove the key when its count is 0."""
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        del counts[key]


LEGAL_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
}


class ClassicGroupMember(Struct, array_like=True, forbid_unknown_fields=True):
    """One member of the group. Times are in milliseconds."""

    member_id: str
    group_instance_id: str | None  # None for a dynamic member
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[Protocol]
    heartbeat_deadline_ms: int | None = None  # None if it passed while a request of the member was parked
    assignment: bytes = b""
    is_new: bool = False  # the member's first JoinGroup is not answered yet
    pending_sync: bool = False  # joined this generation and has not synced yet
    parked_join: ReplyTo | None = None  # the address of the parked request, None if no request is parked
    parked_sync: ReplyTo | None = None

    @property
    def instance_id(self) -> str | None:
        """The instance id, under the name that members of the other protocols use."""
        return self.group_instance_id

    def has_parked_request(self) -> bool:
        """Return True if a request of the member is parked."""
        return self.parked_join is not None or self.parked_sync is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol, b"" if the member does not offer the protocol."""
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")


class PendingMember(Struct, array_like=True, forbid_unknown_fields=True):
    """A member id that was sent with MEMBER_ID_REQUIRED and has not joined yet (KIP-394)."""

    client_id: str
    client_host: str
    heartbeat_deadline_ms: int  # when the id is removed unless the client joins with it


class JoinPhase(Struct, array_like=True, forbid_unknown_fields=True):
    """The timer of PreparingRebalance, in milliseconds. `delay_ms` is its length.

    `initial_remaining_ms` is the time by which the initial delay of a group may still be extended after this
    timer. It is None if the rebalance did not start at Empty, so that there is no initial delay.
    """

    deadline_ms: int
    delay_ms: int
    initial_remaining_ms: int | None


class ClassicGroup(Group, tag="Kafka"):
    """The state of one group of the classic protocol.

    Change `members`, and a member's `protocols`, `parked_join` and `pending_sync`, only by the methods of
    this class. The methods also update the counts of members (`awaiting_join_response`, `pending_syncs`,
    `supported_protocols`), which are not stored but computed at their first use. Such a cached property is an
    entry in `__dict__`, so it can be changed.
    """

    type_name = "classic"

    state: GroupState = GroupState.EMPTY
    previous_state: GroupState | None = None  # None if the state has never changed
    generation: int = 0  # 0 before the first generation
    protocol_type: str | None = None  # None until the first member joins
    protocol_name: str | None = None  # None before the first generation, and in an Empty group
    leader_id: str | None = None  # None without members
    members: dict[str, ClassicGroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # group.instance.id -> member id
    pending_members: dict[str, PendingMember] = field(default_factory=dict)
    new_member_added: bool = False  # a member joined during the current initial delay
    join_phase: JoinPhase | None = None  # None unless the group waits for JoinGroups
    sync_deadline_ms: int | None = None  # None unless the group waits for SyncGroups
    # The sorted topics of this generation's members, None if they are unreadable:
    # ClassicGroup.subscribedTopics
    subscribed_topics: list[str] | None = None
    # The partition counts by which the coordinator assigned this generation.
    partitions_per_topic: dict[str, int] = field(default_factory=dict)
    # The partition counts that JoinGroups have reported since then, for the next generation.
    reported_partition_counts: dict[str, int] = field(default_factory=dict)
    # The members' topics as JoinGroups reported them, which an upgrade needs. A topic that does not exist is
    # None.
    topics: dict[str, Topic | None] = field(default_factory=dict)
    # Sorted names of unknown topics that an upgrade needed (row MI14).
    wanted_topics: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def can_expire_offsets(self) -> bool:
        """Row Z5: return True if offsets can expire. They can in an Empty group, and in a Stable group whose
        topics are known.
        """
        if self.is_empty:
            return True
        knows_topics = self.uses_consumer_group_protocol() and self.subscribed_topics is not None
        return knows_topics and self.state is GroupState.STABLE

    @property
    def abandoned_since_ms(self) -> int | None:
        """The time at which the group lost its last member, or None if it has members or never had one."""
        is_abandoned = self.is_empty and self.protocol_type is not None  # the first member set the type
        return self.state_timestamp_ms if is_abandoned else None

    @property
    def why_expired(self) -> tuple[str, str]:
        """The row (Z1 to Z3) by which offsets of this group expire, and the reason for the history."""
        if self.abandoned_since_ms is not None:
            return "Z1", "the group had no members"
        if self.protocol_type is None:
            return "Z3", "nothing was committed"
        return "Z2", "no member subscribed to the topic, and nothing was committed"

    def subscribed(self) -> set[str]:
        """Return the names of all topics that members are known to subscribe to."""
        return set(self.subscribed_topics or ())

    def is_initial_rebalance(self) -> bool:
        """Return True if the current PreparingRebalance started at Empty."""
        return self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY

    def uses_consumer_group_protocol(self) -> bool:
        """Return True if the protocol type is `consumer`, whose metadata the coordinator can read."""
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def allows_offset_delete(self) -> bool:
        """True if offsets may be deleted by request: if the group has no members, or if the coordinator can
        read the topics of its members.
        """
        return self.is_empty or self.uses_consumer_group_protocol()

    def subscribed_of(self, topics: Iterable[str]) -> set[str]:
        """Return the topics among `topics` that a member subscribes to. Return all if the protocol type is
        `consumer` and the members' subscriptions are unreadable.
        """
        if self.subscribed_topics is None:
            return set(topics) if self.uses_consumer_group_protocol() else set()
        return {topic for topic in topics if self.is_subscribed(topic)}

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member is known to subscribe to the topic."""
        # With 1,000 topics, this takes a twentieth of the time of building a set.
        return is_among(topic, self.subscribed_topics or [])

    @cached_property
    def awaiting_join_response(self) -> int:
        """The number of members with a parked JoinGroup: ClassicGroup.numMembersAwaitingJoinResponse."""
        return sum([member.parked_join is not None for member in self.members.values()])

    @cached_property
    def pending_syncs(self) -> int:
        """The number of members that have not synced in this generation: ClassicGroup.pendingSyncMembers."""
        return sum([member.pending_sync for member in self.members.values()])

    @cached_property
    def supported_protocols(self) -> SupportedProtocols:
        """The counts of the protocols that members offer."""
        supported = SupportedProtocols()
        for member in self.members.values():
            supported.add(member.protocols)
        return supported

    def members_not_rejoined(self) -> list[ClassicGroupMember]:
        return [m for m in self.members.values() if m.parked_join is None]

    def has_all_members_joined(self) -> bool:
        """Return True if every member has a parked JoinGroup and no member id is pending."""
        return not self.pending_members and self.awaiting_join_response == len(self.members)

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members, 0 without members."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def supports_protocols(self, protocol_type: str, protocols: list[Protocol]) -> bool:
        """Return True if a member with these protocols may join the group (rows U1, U2)."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self.supported_protocols.is_shared(p.name) for p in protocols)

    def select_protocol(self) -> str:
        """Return the protocol of the next generation: the one with the most votes of the members.

        A tie goes to the protocol that the first member to join lists first. In Kafka, a map's order decides.
        """
        return self.supported_protocols.select(next(iter(self.members.values())).protocols)

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Check a member's identity (ClassicGroup.validateMember).

        Returns UNKNOWN_MEMBER_ID if the instance id or the member id is unknown, FENCED_INSTANCE_ID if the
        instance id belongs to another member id, else NONE. A pending member id is unknown. A static member's
        id without its instance id is accepted.
        """
        if group_instance_id is not None:
            error = validate_instance(self.static_members, member_id, group_instance_id)
            if error is not ErrorCode.NONE:
                return error
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        """Add a member. The first member sets the protocol type. If the group has no leader, the member
        becomes the leader.
        """
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.awaiting_join_response += member.parked_join is not None
        self.pending_syncs += member.pending_sync
        self._count_protocols(member, by=1)
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id. If the leader is removed, the member that joined first
        becomes leader.
        """
        self.pending_members.pop(member_id, None)
        member = self.members.get(member_id)
        if member is not None:
            self.awaiting_join_response -= member.parked_join is not None
            self.pending_syncs -= member.pending_sync
            self._count_protocols(member, by=-1)
            del self.members[member_id]
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def set_protocols(self, member: ClassicGroupMember, protocols: list[Protocol]) -> None:
        """Replace the protocols that the member offers."""
        self._count_protocols(member, by=-1)
        member.protocols = protocols
        self._count_protocols(member, by=1)

    def set_parked_join(self, member: ClassicGroupMember, reply_to: ReplyTo | None) -> None:
        """Park the member's JoinGroup. None means that it is no longer parked."""
        self.awaiting_join_response += (reply_to is not None) - (member.parked_join is not None)
        member.parked_join = reply_to

    def set_pending_sync(self, member: ClassicGroupMember, pending: bool) -> None:
        """Record that the member still has to sync in this generation, or no longer has to."""
        self.pending_syncs += pending - member.pending_sync
        member.pending_sync = pending

    def _count_protocols(self, member: ClassicGroupMember, by: int) -> None:
        """Count the member (`by` 1) or stop counting it (-1) in `supported_protocols`, if that was computed
        already.
        """
        supported: SupportedProtocols | None = self.__dict__.get("supported_protocols")
        if supported is not None:
            supported.add(member.protocols, by)

    def parked(self) -> Iterator[ReplyTo]:
        """Yield the address of every parked request."""
        for member in self.members.values():
            if member.parked_join is not None:
                yield member.parked_join
            if member.parked_sync is not None:
                yield member.parked_sync
