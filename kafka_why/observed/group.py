"""The state of a group of the cluster's own coordinator. This module has only data and queries.

A change of the fields requires a new version in `checkpoints.codec`.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from kafka_why.contract.kafka.history import (
    CLASSIC,
    NOT_READY,
    SHARE,
    STREAMS,
    ConsumerGroupState,
    GroupState,
    MemberState,
    Offset,
)
from kafka_why.contract.kafka.snapshot import NamedPartitions, Partitions, last_commit, named
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    ProtocolError,
    TopicPartition,
    decode_assignment,
)
from kafka_why.contract.sightings import SeenMember
from kafka_why.observed.records import ClassicMember, MemberSubscription

ACTIVE, STANDBY, WARM_UP = "active", "standby", "warm-up"
"""The roles of tasks of a streams group."""

# The seq of the entry about a group's creation. No other entry has this seq, so readers notice if the records
# do not show the creation.
CREATION = 1


class Classic(Struct, array_like=True, forbid_unknown_fields=True):
    """The state of a classic group: its current generation."""

    protocol_name: str | None  # None without members
    leader_id: str | None
    since_ms: int  # time of the record with the members' assignments
    members: list[ClassicMember]


class Sighting(Struct, array_like=True, forbid_unknown_fields=True):
    """A rebalance that polls saw."""

    run: str  # id of the unbroken series of polls that found the group rebalancing
    state: str
    first_ms: int  # time of the first poll that saw it; `state` and `members` are from this poll, too
    within_ms: int  # the rebalance began at most this long before `first_ms`
    members: list[SeenMember] | None  # None if unknown
    last_ms: int  # time of the last poll that saw it
    # Ids of members at the last poll that found the group in PreparingRebalance; None if unknown.
    last_members: list[str] | None = None
    # Members of the previous generation; None until the history has the beginning of this rebalance.
    before: list[ClassicMember] | None = None

    @property
    def is_recorded(self) -> bool:
        """True if the history has the beginning of this rebalance."""
        return self.before is not None


class Assigned(Struct, array_like=True, forbid_unknown_fields=True):
    """The current assignment of a member of a group with epochs."""

    epoch: int  # the member epoch
    previous_epoch: int
    state: MemberState | None  # None for a code that is not known
    partitions: Partitions  # that the member may use
    revoking: Partitions  # that the member has to give up
    revoking_since_ms: int | None  # since when; None if it has nothing to give up
    since_ms: int  # time at which the member got these partitions; 0 if unknown


class News(Struct, array_like=True, forbid_unknown_fields=True):
    """The changes in the records of one request, which are reasons for the group epoch that may follow."""

    joined: list[str] = field(default_factory=list)  # ids of new members
    gone: dict[str, str] = field(default_factory=dict)  # ids of members that left, with reasons
    changed: dict[str, str] = field(default_factory=dict)  # ids of members, with texts about their changes
    regexes: list[str] = field(default_factory=list)  # patterns that match other topics than before
    # Static members that had left temporarily and are now removed: member id and subscription by instance id.
    # A new member with the same instance id may follow.
    away: dict[str, tuple[str, MemberSubscription]] = field(default_factory=dict)
    is_new_topology: bool = False  # True if a streams group has a new topology


class ShareState(Struct, array_like=True, forbid_unknown_fields=True):
    """The partitions of a share group in each state at the share coordinator, by topic id."""

    first_ms: int  # of the group's first record of this type
    initializing: Partitions = field(default_factory=dict)
    initialized: Partitions = field(default_factory=dict)
    deleting: list[bytes] = field(default_factory=list)  # topics; the log does not have their partitions
    names: dict[bytes, str] = field(default_factory=dict)
    since_ms: dict[bytes, int] = field(default_factory=dict)  # when each topic was added to `initializing`


class Topology(Struct, array_like=True, forbid_unknown_fields=True):
    """The topology of a streams group."""

    epoch: int | None = None  # None without a topology
    validated_epoch: int = -1  # topology epoch whose topics were found valid; -1 if they are not valid
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)  # topics that each subtopology reads
    configs: dict[str, str] | None = None  # settings of the assignment; None before the first group epoch

    @property
    def is_ready(self) -> bool:
        """True if members can have tasks. Source: StreamsGroup.maybeUpdateGroupState."""
        return self.epoch is not None and self.epoch == self.validated_epoch


class Epochs(Struct, array_like=True, forbid_unknown_fields=True):
    """The state of a consumer, share or streams group. The group epoch is `ObservedGroup.generation`.

    Streams groups have tasks (`task_key`) instead of partitions.
    """

    kind: str  # the group type: consumer, share or streams
    # True until the records show a change of the group: the history has not begun.
    is_found: bool = True
    is_settled: bool = True  # True if every member has reached its target since the last group epoch
    is_ending: bool = False  # True while the group's records are being removed
    assignment_epoch: int = 0
    metadata_hash: int = 0
    subscriptions: dict[str, MemberSubscription] = field(default_factory=dict)  # by member id
    assigned: dict[str, Assigned] = field(default_factory=dict)  # by member id
    targets: dict[str, Partitions] = field(default_factory=dict)  # by member id
    # Targets that were written since the last record of a target epoch.
    changed_targets: dict[str, Partitions] = field(default_factory=dict)
    topics: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # as in `SubscribedTopics`
    regexes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the topics that each pattern matches
    news: News = field(default_factory=News)
    share: ShareState | None = None  # of a share group
    topology: Topology = field(default_factory=Topology)  # of a streams group

    def assignor(self) -> str | None:
        """Return the assignor that all members name, or None if they name several or none."""
        names = {member.server_assignor for member in self.subscriptions.values()}
        return names.pop() if len(names) == 1 else None


def task_key(role: str, subtopology: str) -> bytes:
    """Return the key of a streams group's tasks, such as `active 0`. It is used like a topic id."""
    return f"{role} {subtopology}".encode()


class ObservedGroup(Struct, array_like=True, forbid_unknown_fields=True):
    """A group of the cluster's own coordinator, after its last record.

    A run is a series of records with the same time, because Kafka writes all records of a request at one
    time.
    """

    group_id: str
    incarnation: str  # distinguishes groups that had the same id one after another
    seq: int = CREATION  # number of the group's last history entry
    at_ms: int = 0  # append time of the last record
    state: str = GroupState.EMPTY.value  # after the last history entry
    state_timestamp_ms: int = 0  # when the group entered `state`
    generation: int = 0  # in a group with epochs, the group epoch
    protocol_type: str | None = None
    last_rebalance_at_ms: int | None = None  # when the last rebalance began
    last_rebalance_reason: str = ""
    run: str = ""  # id of the first record of the last run
    run_ms: int = 0  # time of the last run
    last_entry_ms: int = 0  # time of the last history entry
    offsets: dict[str, dict[int, Offset]] = field(default_factory=dict)  # by topic and partition
    classic: Classic | None = None  # both `classic` and `epochs` are None in a group that has only offsets
    epochs: Epochs | None = None
    # Sightings of rebalances whose generation has not been read yet.
    sightings: list[Sighting] = field(default_factory=list)

    @property
    def type_name(self) -> str:
        """The `group_type` of the group's history entries: classic, consumer, share or streams."""
        return CLASSIC if self.epochs is None else self.epochs.kind

    def member_ids(self) -> list[str]:
        """Return the members in the order of their records."""
        if self.epochs is not None:
            return list(self.epochs.subscriptions)
        return [] if self.classic is None else [member.member_id for member in self.classic.members]

    def epochs_state(self) -> str:
        """Return the state of a group with epochs (maybeUpdateGroupState of Kafka's group classes)."""
        epochs = self.epochs
        assert epochs is not None
        if not epochs.subscriptions:
            return ConsumerGroupState.EMPTY.value
        if epochs.kind == SHARE:
            return ConsumerGroupState.STABLE.value
        if epochs.kind == STREAMS and not epochs.topology.is_ready:
            return NOT_READY
        if self.generation > epochs.assignment_epoch:
            return ConsumerGroupState.ASSIGNING.value
        if self.are_members_at_target():
            return ConsumerGroupState.STABLE.value
        return ConsumerGroupState.RECONCILING.value

    def state_now(self) -> str:
        """Return the current state, also of a group whose history has not begun."""
        if self.epochs is not None and self.epochs.is_found and self.seq == CREATION:
            # No entry yet: use the records that compaction has left.
            return self.epochs_state()
        return self.state

    def are_members_at_target(self) -> bool:
        """Return True if the target assignment is current, and every member has reached it."""
        epochs = self.epochs
        assert epochs is not None
        return self.generation <= epochs.assignment_epoch and all(
            assigned is not None
            and assigned.state is MemberState.STABLE
            and assigned.epoch == epochs.assignment_epoch
            for assigned in map(epochs.assigned.get, epochs.subscriptions)
        )

    def removal_reason(
        self, member_id: str, held: Iterable[TopicPartition], since_ms: int, at_ms: int
    ) -> str:
        """Return a sentence about a member that is gone at `at_ms`, with the time of its last commit.

        The member had the partitions `held` since `since_ms`.
        """
        text, partitions = f"member {member_id} left or expired", list(held)
        if not partitions:
            return text
        offsets = (self.offsets.get(p.topic, {}).get(p.partition) for p in partitions)
        last_commit_ms = max((offset.committed_at_ms for offset in offsets if offset is not None), default=0)
        if last_commit_ms == since_ms:  # both are from the same poll, so their order is unknown
            return text
        # An earlier commit is another member's.
        ago_ms = None if last_commit_ms < since_ms else at_ms - last_commit_ms
        return f"{text}: {last_commit(ago_ms)}"

    def held_by(self, member: ClassicMember) -> list[TopicPartition]:
        """Return a classic member's partitions, or [] if the assignment is not one of Kafka's consumer."""
        if self.protocol_type != PROTOCOL_TYPE or not member.assignment:
            return []
        try:
            return list(decode_assignment(member.assignment).partitions)
        except ProtocolError:
            return []

    def topic_ids(self) -> set[bytes]:
        """Return the ids of the topics in members' assignments and targets."""
        if self.epochs is None or self.epochs.kind == STREAMS:
            return set()
        held = (assigned.partitions for assigned in self.epochs.assigned.values())
        return set[bytes]().union(*held, *self.epochs.targets.values())

    def names(self, names: Mapping[bytes, str]) -> dict[bytes, str]:
        """Return topic names by id: `names`, and those in the group's own records."""
        if self.epochs is None:
            return dict(names)
        own = {topic_id: name for topic_id, (name, _) in self.epochs.topics.items()}
        return {**names, **own, **(self.epochs.share.names if self.epochs.share is not None else {})}

    def partitions_by_name(self, partitions: Partitions, names: Mapping[bytes, str]) -> NamedPartitions:
        """Return the partitions by topic name, or a streams group's tasks by role and subtopology."""
        if self.type_name == STREAMS:
            return {key.decode(): list(numbers) for key, numbers in sorted(partitions.items())}
        return named(partitions, self.names(names))
