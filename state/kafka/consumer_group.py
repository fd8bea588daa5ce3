"""A group of the consumer protocol (KIP-848): its epochs, its members and its target assignment.

This file holds data and queries only; `state.kafka.consumer` changes a group. What can be derived from the
members (the holder of a partition, the subscribers of a topic) is not stored. The order of the fields is the
layout of the stored state: a change of the order is a new version in `checkpoints.codec`. Source:
ConsumerGroup.java, ConsumerGroupMember.java, ModernGroup.java.

A row, such as OF27, is a rule of docs/rules-consumer.md.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import ClassVar

from msgspec import Struct, field

from kafka_why.contract.kafka.history import MemberState
from kafka_why.contract.kafka.requests import Protocol
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE
from state.kafka.group import is_among
from state.kafka.modern_group import EpochGroup, EpochMember

AssignedPartitions = dict[bytes, dict[int, int]]
"""A member's partitions by topic id: partition -> epoch of the target that assigned it (KIP-1251)."""

Owned = Mapping[bytes, Collection[int]]
"""The partitions that a client reports as its own, by topic id."""

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


class ConsumerMember(EpochMember):
    """One member of the group. Times are in milliseconds."""

    server_assignor: str | None = None
    subscribed_topic_names: list[str] = field(default_factory=list)  # sorted
    subscribed_topic_regex: str = ""  # "" without a pattern
    member_epoch: int = 0
    previous_epoch: int = -1  # the member epoch before the last write of the assignment
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = field(default_factory=dict)  # partitions that the member may use
    # Partitions that the member has to revoke.
    pending_revocation: AssignedPartitions = field(default_factory=dict)
    session_deadline_ms: int | None = None
    rebalance_deadline_ms: int | None = None  # armed while the member has to revoke partitions
    classic: ClassicMember | None = None  # None for a member on the consumer protocol
    revoking_since_ms: int | None = None  # the time of the answer that requested a revocation

    @property
    def session_timeout_ms(self) -> int | None:
        """The session timeout that a classic member itself has sent, or None if the group's setting
        applies.
        """
        return None if self.classic is None else self.classic.session_timeout_ms

    def has_all(self, owned: Owned) -> bool:
        """Return True if all of `owned` is assigned to the member."""
        return all(self.assigned.get(topic_id, {}).keys() >= set(owned[topic_id]) for topic_id in owned)


class ResolvedRegex(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The topics, sorted, that a pattern matched when the cluster's topics were read at `at_ms`."""

    topics: list[str]
    at_ms: int


class CheckedRegex(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of the checks of a pattern. A check matches the pattern against the topics that a member's
    client may DESCRIBE (`state.kafka.consumer.regex`). Times are in ms.
    """

    seen: str = ""  # digest of the topics that the last check found before filtering, "" if unknown
    looked_at_ms: int | None = None  # time of the last check
    asked_at_ms: int | None = None  # time of the last answer that requested a check
    is_wanted: bool = True  # the group needs another check


class ConsumerGroup(EpochGroup[ConsumerMember, Partitions], tag="KafkaConsumer"):
    """The state of one group of the consumer protocol.

    Only the methods of this class add and remove members, and change a member's partitions and topics,
    because the methods also update `held` and `subscriptions`, which are cached and not stored.
    """

    type_name = "consumer"
    protocol_type: ClassVar[str] = PROTOCOL_TYPE

    resolved_regexes: dict[str, ResolvedRegex] = field(default_factory=dict)  # by pattern
    checked_regexes: dict[str, CheckedRegex] = field(default_factory=dict)  # by pattern

    @property
    def is_rebalancing(self) -> bool:
        """Return True if members had not reached their target assignment at the end of the last step."""
        return self.progress.is_moving

    why_expired = ("OF27", "no member subscribed to the topic, and nothing was committed")

    def topics_of(self, member: ConsumerMember) -> set[str]:
        """Return the names of the topics that the member subscribes to, by name or by its pattern."""
        resolved = self.resolved_regexes.get(member.subscribed_topic_regex)
        return {*member.subscribed_topic_names, *(resolved.topics if resolved is not None else ())}

    @cached_property
    def subscriptions(self) -> Counter[Subscribed]:
        """The number of members with each subscription. Most groups have few different ones."""
        return Counter(_subscription_of(member) for member in self.members.values())

    def add(self, member: ConsumerMember) -> None:
        """Add a member that holds no partitions yet."""
        super().add(member)
        self._count_subscription(member, by=1)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member, and free its partitions (row HB44)."""
        self.assign(member, assigned={}, pending_revocation={})
        super().remove(member)
        self._count_subscription(member, by=-1)

    def subscribe(self, member: ConsumerMember, names: list[str], pattern: str) -> None:
        """Set the topics that the member subscribes to. `names` are sorted."""
        self._count_subscription(member, by=-1)
        member.subscribed_topic_names, member.subscribed_topic_regex = names, pattern
        self._count_subscription(member, by=1)

    def _count_subscription(self, member: ConsumerMember, by: int) -> None:
        """Add `by` to the member's entry in `subscriptions`, if they were counted already."""
        counted: Counter[Subscribed] | None = self.__dict__.get("subscriptions")
        if counted is not None:
            subscription = _subscription_of(member)
            counted[subscription] += by
            if not counted[subscription]:
                del counted[subscription]

    def subscribed(self) -> set[str]:
        """Return the names of all topics that members subscribe to, by name or by a resolved pattern."""
        subscribed: set[str] = set()
        for names, pattern in self.subscriptions:
            resolved = self.resolved_regexes.get(pattern)
            subscribed.update(names, resolved.topics if resolved is not None else ())
        return subscribed

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic."""
        matching = {p for p, resolved in self.resolved_regexes.items() if is_among(topic, resolved.topics)}
        return any(pattern in matching or is_among(topic, names) for names, pattern in self.subscriptions)

    def unknown_topics(self) -> list[str]:
        """Return the sorted subscribed names of topics about which nothing was reported yet (row MI12)."""
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
        """Set the partitions that the member holds."""
        self._set_may_be_behind(member)
        held = self.held
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                holders = held[topic_id]
                for number in numbers:
                    del holders[number]
                if not holders:
                    del held[topic_id]
        member.assigned, member.pending_revocation = assigned, pending_revocation
        for partitions in (assigned, pending_revocation):
            for topic_id, numbers in partitions.items():
                held.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_id))

    def keep_assigned(self, member: ConsumerMember) -> None:
        at_epoch_0 = {topic_id: dict.fromkeys(numbers, 0) for topic_id, numbers in member.assigned.items()}
        self.assign(member, at_epoch_0, pending_revocation={})


def _subscription_of(member: ConsumerMember) -> Subscribed:
    return tuple(member.subscribed_topic_names), member.subscribed_topic_regex
