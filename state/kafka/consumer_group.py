"""A group of the consumer protocol (KIP-848): its epochs, its members and its target assignment.

This file holds data and queries only; `state.kafka.consumer` changes a group. What can be derived from the
members (the holder of a partition, the subscribers of a topic) is not stored. The order of the fields is the
layout of the stored state: a change of the order is a new version in `checkpoints.codec`. Source:
ConsumerGroup.java, ConsumerGroupMember.java, ModernGroup.java.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

from msgspec import Struct, field

from kafka_why.contract.kafka.history import ConsumerGroupState, MemberState
from kafka_why.contract.kafka.requests import Protocol
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE
from state.kafka.group import ModernGroup, Topic

AssignedPartitions = dict[bytes, dict[int, int]]
"""A member's partitions by topic id: partition -> epoch of the target that assigned it (KIP-1251)."""

Subscribed = tuple[tuple[str, ...], str]
"""A subscription: sorted topic names, and a pattern, "" without one."""


class ClassicMember(Struct, array_like=True, forbid_unknown_fields=True):
    """The additional state of a member on the classic protocol. Times are in ms.

    `join_deadline_ms` is armed by a Heartbeat or SyncGroup that was answered with REBALANCE_IN_PROGRESS,
    `sync_deadline_ms` by the answer to a JoinGroup.
    """

    session_timeout_ms: int
    protocols: list[Protocol]
    join_deadline_ms: int | None = None
    sync_deadline_ms: int | None = None


class ConsumerMember(Struct, array_like=True, forbid_unknown_fields=True):
    """One member of the group. Times are in milliseconds."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    subscribed_topic_names: list[str] = []  # sorted
    subscribed_topic_regex: str = ""  # "" without a pattern
    member_epoch: int = 0
    previous_epoch: int = -1  # the member epoch before the last write of the assignment
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = {}  # partitions that the member may use
    pending_revocation: AssignedPartitions = {}  # partitions that the member has to revoke
    session_deadline_ms: int | None = None
    rebalance_deadline_ms: int | None = None  # armed while the member has to revoke partitions
    classic: ClassicMember | None = None  # None for a member on the consumer protocol
    revoking_since_ms: int | None = None  # the time of the answer that requested a revocation

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return True if the member has reached the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def is_present_and_behind(self, epoch: int) -> bool:
        """Return True if the member has joined, is not away temporarily, and has not reached the target
        assignment of this epoch.
        """
        return self.member_epoch > 0 and not self.is_reconciled_to(epoch)


class GroupProgress(NamedTuple):
    """The state of a group, and True if a present member has not reached the target assignment.

    An absent static member makes a group Reconciling, but there is no rebalance.
    """

    state: ConsumerGroupState
    is_rebalancing: bool


class _MayBeBehind(NamedTuple):
    """The members, by id, that may not have reached the target assignment of this epoch."""

    epoch: int
    there: dict[str, ConsumerMember]
    away: dict[str, ConsumerMember]  # not joined yet, or left temporarily


class ResolvedRegex(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The topics, sorted, that a pattern matched when the cluster's topics were read at `at_ms`."""

    topics: list[str]
    at_ms: int


class CheckedRegex(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A pattern whose topics are filtered by what the group's members may DESCRIBE. Times are in ms."""

    seen: str = ""  # digest of the topics that the last check found before filtering, "" if unknown
    looked_at_ms: int | None = None  # time of the last check
    asked_at_ms: int | None = None  # time of the last answer that requested a check
    is_wanted: bool = True  # the group needs another check


class ConsumerGroup(ModernGroup, tag="KafkaConsumer"):
    """The state of one group of the consumer protocol.

    Only the methods of this class add and remove members, and change what a member holds or subscribes to.
    They update the holders of partitions and the subscribers of topics, which are derived and not stored.
    """

    type_name = "consumer"
    protocol_type: ClassVar[str] = PROTOCOL_TYPE

    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # group.instance.id -> member id
    target: dict[str, Partitions] = field(default_factory=dict)  # by member id
    target_assignor: str = ""  # the name of the assignor that computed the target
    topics: dict[str, Topic | None] = field(default_factory=dict)
    resolved_regexes: dict[str, ResolvedRegex] = field(default_factory=dict)  # by pattern
    checked_regexes: dict[str, CheckedRegex] = field(default_factory=dict)  # by pattern

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        return ConsumerGroupState.STABLE if self._find_behind() is None else ConsumerGroupState.RECONCILING

    @cached_property
    def progress(self) -> GroupProgress:
        """The progress of the group at the end of a step. It is derived anew after `forget_progress`."""
        if self.group_epoch > self.assignment_epoch:
            return GroupProgress(self.state, True)
        behind = self._find_behind()
        return GroupProgress(self.state, behind is not None and behind.member_epoch > 0)

    def forget_progress(self) -> None:
        """Discard the cached `progress`, because a step has changed the group."""
        self.__dict__.pop("progress", None)

    def _find_behind(self) -> ConsumerMember | None:
        """Return a member that has not reached the target assignment, preferably one that is not away."""
        # Every history entry calls this, so all members are visited only once per target, and then only those
        # that may still be behind. The last members are tried first, because the first ones reach the target
        # first.
        epoch = self.assignment_epoch
        kept: _MayBeBehind | None = self.__dict__.get("may_be_behind")
        if kept is None or kept.epoch != epoch:
            behind = {id_: m for id_, m in self.members.items() if not m.is_reconciled_to(epoch)}
            kept = self.__dict__["may_be_behind"] = _MayBeBehind(epoch, behind, {})
        while kept.there:
            member_id, last = kept.there.popitem()
            if last.is_present_and_behind(epoch):
                kept.there[member_id] = last
                return last
            if not last.is_reconciled_to(epoch):
                kept.away[member_id] = last
        return next(iter(kept.away.values()), None)

    def _note_change(self, member: ConsumerMember) -> None:
        """Record that the member may have fallen behind the target assignment, or reached it."""
        if (kept := self.__dict__.get("may_be_behind")) is not None:
            kept.away.pop(member.member_id, None)
            kept.there[member.member_id] = member

    @property
    def is_rebalancing(self) -> bool:
        return self.progress.is_rebalancing

    @property
    def is_empty(self) -> bool:
        return not self.members

    def is_consumer_group(self) -> bool:
        """Return True: the protocol type is always `consumer`."""
        return True

    def why_expired(self) -> tuple[str, str]:
        """Return the row by which unused offsets of this group expire, and the reason for the history."""
        return "OF27", "no member subscribed to the topic, and nothing was committed"

    def topics_of(self, member: ConsumerMember) -> set[str]:
        """Return the names of the topics that the member subscribes to, by name or by its pattern."""
        resolved = self.resolved_regexes.get(member.subscribed_topic_regex)
        return {*member.subscribed_topic_names, *(resolved.topics if resolved is not None else ())}

    @cached_property
    def subscriptions(self) -> Counter[Subscribed]:
        """The number of members with each subscription. Most groups have few different ones."""
        return Counter(_subscribed(member) for member in self.members.values())

    def add(self, member: ConsumerMember) -> None:
        """Add a member that holds no partitions yet."""
        self.members[member.member_id] = member
        self._count(member, 1)
        self._note_change(member)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member that no longer holds any partitions."""
        del self.members[member.member_id]
        self._count(member, -1)
        if (kept := self.__dict__.get("may_be_behind")) is not None:
            kept.there.pop(member.member_id, None)
            kept.away.pop(member.member_id, None)

    def subscribe(self, member: ConsumerMember, names: list[str], pattern: str) -> None:
        """Set the topics that the member subscribes to. `names` are sorted."""
        self._count(member, -1)
        member.subscribed_topic_names, member.subscribed_topic_regex = names, pattern
        self._count(member, 1)

    def _count(self, member: ConsumerMember, by: int) -> None:
        """Update `subscriptions` if it was derived already."""
        counted: Counter[Subscribed] | None = self.__dict__.get("subscriptions")
        if counted is not None:
            subscribed = _subscribed(member)
            counted[subscribed] += by
            if not counted[subscribed]:
                del counted[subscribed]

    def subscribed(self) -> set[str]:
        """Return the names of all topics that members subscribe to, by name or by a resolved pattern."""
        subscribed: set[str] = set()
        for names, pattern in self.subscriptions:
            resolved = self.resolved_regexes.get(pattern)
            subscribed.update(names, resolved.topics if resolved is not None else ())
        return subscribed

    def subscribed_of(self, topics: Iterable[str]) -> set[str]:
        """Return the topics among these that a member subscribes to."""
        return self.subscribed().intersection(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic."""
        matching = {p for p, resolved in self.resolved_regexes.items() if _is_among(topic, resolved.topics)}
        return any(pattern in matching or _is_among(topic, names) for names, pattern in self.subscriptions)

    def names_by_id(self) -> dict[bytes, str]:
        """Return the names of the known topics that exist, by topic id."""
        return {topic.topic_id: name for name, topic in self.topics.items() if topic is not None}

    def unknown_topics(self) -> list[str]:
        """Return the sorted subscribed names that are not among the known topics (row MI12)."""
        return sorted({name for names, _ in self.subscriptions for name in names} - self.topics.keys())

    def unresolved_regexes(self) -> list[str]:
        """Return the members' sorted patterns that wait for a result of the topic watcher."""
        patterns = {pattern for _, pattern in self.subscriptions} - {""}
        return sorted(patterns - self.resolved_regexes.keys() - self.checked_regexes.keys())

    @cached_property
    def held(self) -> dict[bytes, dict[int, str]]:
        """The holder of each partition, by topic id and partition.

        A member holds the partitions that are assigned to it or pending its revocation.
        """
        held: dict[bytes, dict[int, str]] = {}
        for member in self.members.values():
            for partitions in (member.assigned, member.pending_revocation):
                for topic_id, numbers in partitions.items():
                    held.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_id))
        return held

    def assign(
        self, member: ConsumerMember, assigned: AssignedPartitions, pending_revocation: AssignedPartitions
    ) -> None:
        """Set the partitions that the member holds. Before the member is removed, set none."""
        self._note_change(member)
        held = self.held
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                of_topic = held[topic_id]
                for number in numbers:
                    del of_topic[number]
                if not of_topic:
                    del held[topic_id]
        member.assigned, member.pending_revocation = assigned, pending_revocation
        for partitions in (assigned, pending_revocation):
            for topic_id, numbers in partitions.items():
                held.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_id))

    def validate_instance(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return UNKNOWN_MEMBER_ID if the instance id belongs to no member, FENCED_INSTANCE_ID if it belongs
        to another member, else NONE.
        """
        if instance_id is None:
            return ErrorCode.NONE
        owner = self.static_members.get(instance_id)
        if owner is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if owner == member_id else ErrorCode.FENCED_INSTANCE_ID


def _subscribed(member: ConsumerMember) -> Subscribed:
    return tuple(member.subscribed_topic_names), member.subscribed_topic_regex


def _is_among(topic: str, topics: Sequence[str]) -> bool:
    """Return True if these sorted topics contain the topic."""
    at = bisect_left(topics, topic)
    return at < len(topics) and topics[at] == topic
