"""The base classes of the groups with epochs, whose target assignment the coordinator computes: consumer
groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071).

The group epoch counts the changes that need a new target, and the assignment epoch is the group epoch of the
current target. A member that has reached this target has the assignment epoch as its member epoch. This file
holds data and queries only. The order of the fields is the layout of the stored state. Source:
ModernGroup.java.

A row, such as HB53, is a rule of docs/rules-consumer.md.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from msgspec import Struct, field

from kafka_why.contract.kafka.history import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    ConsumerGroupState,
    MemberState,
)
from state.kafka.group import Group, Topic

M = TypeVar("M")


class GroupProgress(NamedTuple):
    """The state of a group, and True if members that are present are still moving to their targets.

    An absent static member makes a group Reconciling, but there is no rebalance.
    """

    state: StrEnum
    is_moving: bool


class ModernGroup(Group, Generic[M]):
    """A group with epochs. `M` is the type of its members."""

    group_epoch: int = 1  # grows with each change that needs a new target assignment
    assignment_epoch: int = 1  # the group epoch that the target was computed for
    assignment_timestamp_ms: int = 0  # when the target was computed, 0 if no assignment interval runs
    metadata_hash: bytes = b""  # fingerprint of the subscribed topics (row HB53), b"" without topics
    metadata_stale: bool = True  # the topics may have changed, so the fingerprint has to be computed again
    members: dict[str, M] = field(default_factory=dict)

    if TYPE_CHECKING:
        # Each kind of group has this field, but at a place of its own in the layout.
        topics: dict[str, Topic | None] = field(default_factory=dict)  # None for a missing topic

    noun: ClassVar[str] = "partitions"
    """The word for what members hold, in messages and in the history."""
    allows_offset_delete: ClassVar[bool] = True
    """True because the coordinator knows the topics that members read: other topics' offsets are not in use
    (row KSO16).
    """
    why_expired: ClassVar[tuple[str, str]]
    """The row by which unused offsets of this group expire, and the reason for the history. It is not set for
    share groups, which have no offsets.
    """

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> StrEnum:
        """Stable with members, else Empty. Only consumer and streams groups have further states."""
        return ConsumerGroupState.STABLE if self.members else ConsumerGroupState.EMPTY

    @cached_property
    def progress(self) -> GroupProgress:
        """The progress of the group at the end of a step, cached until `forget_progress`."""
        return GroupProgress(self.state, self._is_moving())

    def _is_moving(self) -> bool:
        """Return True if a target has to be computed, or a member that is present has not reached it."""
        raise NotImplementedError

    def forget_progress(self) -> None:
        """Discard the cached progress, because a step has changed the group."""
        self.__dict__.pop("progress", None)

    @property
    def is_rebalancing(self) -> bool:
        """Return True if members have not reached their target assignment, or one has to be computed."""
        return self._is_moving()

    def subscribed(self) -> set[str]:
        """Return the names of all topics that members read."""
        raise NotImplementedError

    def is_subscribed(self, topic: str) -> bool:
        """Return True if members read the topic."""
        return topic in self.subscribed()

    def subscribed_of(self, topics: Iterable[str]) -> set[str]:
        """Return the topics among `topics` that members read."""
        return self.subscribed().intersection(topics)

    def required_topics(self) -> set[str]:
        """Return the names of the topics whose changes raise the group epoch."""
        return self.subscribed()

    def unknown_topics(self) -> list[str]:
        """Return the sorted names of required topics about which nothing was reported yet (row MI12)."""
        return sorted(self.required_topics() - self.topics.keys())

    def names_by_id(self) -> dict[bytes, str]:
        """Return the names of the group's topics that exist, by topic id."""
        return {topic.topic_id: name for name, topic in self.topics.items() if topic is not None}

    def ids_of(self, names: Iterable[str]) -> set[bytes]:
        """Return the current ids of the topics with these names. A topic that does not exist is left out."""
        topics = (self.topics.get(name) for name in names)
        return {topic.topic_id for topic in topics if topic is not None}

    @property
    def generation(self) -> int:
        """The group epoch, which the history shows as the generation."""
        return self.group_epoch

    def entry_details(self) -> dict[str, object]:
        return {"group_type": self.type_name, "assignment_epoch": self.assignment_epoch}


class EpochMember(Struct, array_like=True, forbid_unknown_fields=True):
    """A member that moves to its target step by step, and may be static. Times are in milliseconds."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1

    if TYPE_CHECKING:
        # Each kind of member has these fields, but at places of their own in the layout.
        member_epoch: int = 0
        previous_epoch: int = 0
        state: MemberState = MemberState.STABLE
        session_deadline_ms: int | None = None
        rebalance_deadline_ms: int | None = None  # armed while the member has to give something up
        revoking_since_ms: int | None = None  # when an answer asked the member to give something up

    @property
    def session_timeout_ms(self) -> int | None:
        """The session timeout that the member itself has sent, or None if the group's setting applies."""
        return None

    @property
    def is_away(self) -> bool:
        """Return True if the static member has left temporarily."""
        return self.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return True if the member has reached the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def is_present_and_behind(self, epoch: int) -> bool:
        """Return True if the member has joined, is not away temporarily, and has not reached the target
        assignment of this epoch.
        """
        return self.member_epoch > 0 and not self.is_reconciled_to(epoch)

    def has_all(self, owned: Any) -> bool:
        """Return True if the member has all that its client reports as its own."""
        raise NotImplementedError


EM = TypeVar("EM", bound=EpochMember)
T = TypeVar("T")


class _MayBeBehind(NamedTuple):
    """The cache of `_find_behind`: the members, by id, that may not have reached the target assignment of
    this epoch. Every other member has reached it.
    """

    epoch: int
    present: dict[str, EpochMember]  # those found to be away move to `away`
    away: dict[str, EpochMember]  # not joined yet, or left temporarily


class EpochGroup(ModernGroup[EM], Generic[EM, T]):
    """A consumer or streams group, whose members move to their targets step by step. `T` is the type of a
    member's target.

    Only the methods of this class change the members, their instance ids, and the partitions or tasks that
    they hold, because the methods also update cached values.
    """

    static_members: dict[str, str] = field(default_factory=dict)  # group.instance.id -> member id
    target: dict[str, T] = field(default_factory=dict)  # by member id
    target_assignor: str = ""  # the name of the assignor that computed the target
    topics: dict[str, Topic | None] = field(default_factory=dict)

    @property
    def state(self) -> StrEnum:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        return ConsumerGroupState.STABLE if self._find_behind() is None else ConsumerGroupState.RECONCILING

    def _is_moving(self) -> bool:
        if self.group_epoch > self.assignment_epoch:
            return True
        behind = self._find_behind()
        return behind is not None and behind.member_epoch > 0

    def _find_behind(self) -> EpochMember | None:
        """Return a member that has not reached the target assignment, preferably one that is not away."""
        # Every history entry calls this, so it must be fast: it visits all members only once per target, and
        # then only those that may still be behind. The first members reach the target first, so the last ones
        # are tried first.
        epoch = self.assignment_epoch
        cached: _MayBeBehind | None = self.__dict__.get("may_be_behind")
        if cached is None or cached.epoch != epoch:
            behind: dict[str, EpochMember] = {
                id_: member for id_, member in self.members.items() if not member.is_reconciled_to(epoch)
            }
            cached = self.__dict__["may_be_behind"] = _MayBeBehind(epoch, behind, {})
        while cached.present:
            member_id, member = cached.present.popitem()  # the last one
            if member.is_present_and_behind(epoch):
                cached.present[member_id] = member
                return member
            if not member.is_reconciled_to(epoch):
                cached.away[member_id] = member
        return next(iter(cached.away.values()), None)

    def _set_may_be_behind(self, member: EM) -> None:
        """Record that `_find_behind` has to check this member again."""
        if (cached := self.__dict__.get("may_be_behind")) is not None:
            cached.away.pop(member.member_id, None)
            cached.present[member.member_id] = member

    def add(self, member: EM) -> None:
        """Add a member that holds nothing yet."""
        self.members[member.member_id] = member
        self._set_may_be_behind(member)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove(self, member: EM) -> None:
        """Remove a member with its target, its instance id and its timers."""
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if (cached := self.__dict__.get("may_be_behind")) is not None:
            cached.present.pop(member.member_id, None)
            cached.away.pop(member.member_id, None)

    def assign(self, member: EM, *held: Any) -> None:
        """Set the partitions or tasks that the member holds. `held` are its assigned ones, those that it has
        to give up, and in a streams group also the assignment epochs of its active tasks.
        """
        raise NotImplementedError

    def keep_assigned(self, member: EM) -> None:
        """Free the partitions or tasks that a member was giving up when it left temporarily. The member keeps
        the rest, which counts as assigned at epoch 0, because the member returns with that epoch.
        """
        raise NotImplementedError

    def set_instance(self, member: EM, instance_id: str | None) -> None:
        """Set the instance id of the member."""
        if instance_id == member.instance_id:
            return
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if instance_id is not None:
            self.static_members[instance_id] = member.member_id
        member.instance_id = instance_id
