"""A share group (KIP-932): its epochs, members, target assignment, and the state of its partitions.

This file holds data and queries only; `state.kafka.share` changes a group. The order of the fields is the
layout of the stored state. Source: ShareGroup.java, ShareGroupMember.java,
ShareGroupStatePartitionMetadataValue.json.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from msgspec import Struct, field

from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.snapshot import Partitions
from state.kafka.group import ModernGroup, Topic

PROTOCOL_TYPE = "share"
LEAVE_GROUP_MEMBER_EPOCH = -1

NO_START_OFFSET = -1
"""The partition leader decides the start offset, by `share.auto.offset.reset`."""


class ShareGroupState(StrEnum):
    """The state of a group: Empty without members (row SG4), else Stable (row SG5)."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareMember(Struct, array_like=True, forbid_unknown_fields=True):
    """One member of the group. Times are in milliseconds."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []  # sorted
    member_epoch: int = 0
    previous_epoch: int = -1  # the member epoch before the last target that the member reached
    assigned: Partitions = {}  # partitions to fetch from, which other members may share
    session_deadline_ms: int | None = None

    instance_id: ClassVar[None] = None
    """Share groups have no static members."""


class InitializationTask(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to the share coordinator to initialize a partition.

    After an error, the next heartbeat repeats the request with the same `state_epoch` and `start_offset`, so
    that an equal epoch always means equal state (SP16).
    """

    task: str  # the open task, "" if it ended with the error `error_code`
    state_epoch: int
    start_offset: int
    at_ms: int  # the time of the request
    error_code: int = 0  # the last result's error, 0 before the first
    # An administrator gave the start offset. The partition may already be initialized, and stays so if the
    # task fails.
    altered: bool = False


class InitializingTopic(Struct, array_like=True, forbid_unknown_fields=True):
    """The partitions of a topic that are not initialized yet."""

    name: str
    partitions: dict[int, InitializationTask]


class InitializedTopic(Struct, array_like=True, forbid_unknown_fields=True):
    """The partitions of a topic, sorted, that can be assigned."""

    name: str
    partitions: list[int]


class DeletingTopic(Struct, array_like=True, forbid_unknown_fields=True):
    """The partitions of a topic whose deletion was requested at `at_ms`."""

    name: str
    partitions: dict[int, int]  # the error code of each one's last outcome, 0 before the first
    task: str  # the open task, "" if it ended with an error
    at_ms: int


class ParkedKind(StrEnum):
    """The requests that wait for the share coordinator."""

    DELETE_GROUP = "DeleteGroup"
    ALTER_OFFSETS = "AlterShareGroupOffsets"
    DELETE_OFFSETS = "DeleteShareGroupOffsets"


class ParkedTopic(Struct, array_like=True, forbid_unknown_fields=True):
    """A topic that a parked request names."""

    name: str
    topic_id: bytes  # b"" if no topic has the name
    outcomes: dict[int, int | None] = {}  # error codes by partition, None while they are awaited
    refused: str = ""  # the row that refused the whole topic, "" if none did


class Parked(Struct, array_like=True, forbid_unknown_fields=True):
    """A request that waits for the share coordinator, until `deadline_ms`. A DeleteGroups has no `topics`: it
    waits for the end of the group.
    """

    kind: ParkedKind
    reply_to: ReplyTo
    deadline_ms: int
    topics: list[ParkedTopic] = []


class ShareGroup(ModernGroup, tag="KafkaShare"):
    """The state of one share group.

    Only the methods of this class change the members, what they subscribe to, and the target, because they
    update what is derived.
    """

    type_name = "share"
    protocol_type: ClassVar[str] = PROTOCOL_TYPE

    members: dict[str, ShareMember] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)  # by member id
    topics: dict[str, Topic | None] = field(default_factory=dict)  # None for a missing topic
    initializing: dict[bytes, InitializingTopic] = field(default_factory=dict)  # by topic id, as the next two
    initialized: dict[bytes, InitializedTopic] = field(default_factory=dict)  # partitions that can be used
    deleting: dict[bytes, DeletingTopic] = field(default_factory=dict)
    deletion: str = ""  # the task that deletes the whole group
    parked: list[Parked] = field(default_factory=list)  # requests that wait for the share coordinator
    # When the open tasks are checked, None if no task is open or all are known to be overdue.
    overdue_deadline_ms: int | None = None
    noted_until_ms: int = 0  # tasks requested later were not overdue yet

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_rebalancing(self) -> bool:
        """Return True if a target assignment has to be computed."""
        return self.group_epoch > self.assignment_epoch

    @cached_property
    def is_settled(self) -> bool:
        """Return True if each member has the target of the group epoch; derived anew after
        `forget_progress`.
        """
        epoch = self.assignment_epoch
        return self.group_epoch == epoch and all(m.member_epoch == epoch for m in self.members.values())

    def forget_progress(self) -> None:
        """Derive `is_settled` anew at its next use, because a step has changed the group."""
        self.__dict__.pop("is_settled", None)

    @property
    def is_empty(self) -> bool:
        return not self.members

    def is_over(self) -> bool:
        """Return False: a share group never ends by itself (row SG6)."""
        return False

    def is_consumer_group(self) -> bool:
        """Return True if the protocol type is `consumer`."""
        return False

    def why_expired(self) -> tuple[str, str]:
        raise AssertionError("a share group has no committed offsets")

    def topics_of(self, member: ShareMember) -> set[str]:
        """Return the names of the topics that the member subscribes to."""
        return set(member.subscribed_topic_names)

    def subscribed(self) -> set[str]:
        """Return the names of all topics that members subscribe to."""
        return self._subscribed

    @cached_property
    def _subscribed(self) -> set[str]:
        return {name for member in self.members.values() for name in member.subscribed_topic_names}

    def add(self, member: ShareMember) -> None:
        """Add a member that subscribes to no topics yet."""
        self.members[member.member_id] = member

    def remove(self, member: ShareMember) -> None:
        """Remove a member with its target."""
        del self.members[member.member_id]
        if member.member_id in self.target:
            self.set_target({id_: has for id_, has in self.target.items() if id_ != member.member_id})
        self.__dict__.pop("_subscribed", None)

    def subscribe(self, member: ShareMember, names: list[str]) -> None:
        """Set the topics that the member subscribes to. `names` are sorted."""
        member.subscribed_topic_names = names
        self.__dict__.pop("_subscribed", None)

    @cached_property
    def covered(self) -> dict[bytes, set[int]]:
        """The partitions that are in the target of a member, by topic id."""
        covered: dict[bytes, set[int]] = {}
        for partitions in self.target.values():
            for topic_id, numbers in partitions.items():
                covered.setdefault(topic_id, set()).update(numbers)
        return covered

    def set_target(self, target: dict[str, Partitions]) -> None:
        """Set the target assignment."""
        self.target = target
        self.__dict__.pop("covered", None)

    def subscribed_of(self, topics: Iterable[str]) -> set[str]:
        """Return the topics among these that a member subscribes to."""
        return self.subscribed().intersection(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic."""
        return topic in self.subscribed()

    def unknown_topics(self) -> list[str]:
        """Return the sorted subscribed names that are not among the known topics (row MI12)."""
        return sorted(self.subscribed() - self.topics.keys())

    def names_by_id(self) -> dict[bytes, str]:
        """Return the names of the known topics that exist, by topic id."""
        return {topic.topic_id: name for name, topic in self.topics.items() if topic is not None}

    def subscribed_ids(self, member: ShareMember) -> set[bytes]:
        """Return the current topic ids of the topics that the member subscribes to (row ST5)."""
        known = (self.topics.get(name) for name in member.subscribed_topic_names)
        return {topic.topic_id for topic in known if topic is not None}

    def assignable(self, topic: Topic) -> list[int]:
        """Return the sorted partitions of the topic that can be assigned: those whose state is initialized
        and is not being rewritten.
        """
        initialized, initializing = (
            self.initialized.get(topic.topic_id),
            self.initializing.get(topic.topic_id),
        )
        if initialized is None:
            return []
        altered = () if initializing is None else initializing.partitions
        return [p for p in initialized.partitions if p < topic.partitions and p not in altered]

    def state_partitions(self) -> Iterator[tuple[bytes, str, list[int]]]:
        """Yield all state that the share coordinator may have of the group: topic id, topic name and sorted
        partitions.
        """
        for topic_id in sorted(self.initializing.keys() | self.initialized.keys() | self.deleting.keys()):
            parts = (self.initializing, self.initialized, self.deleting)
            found = [of[topic_id] for of in parts if topic_id in of]
            yield topic_id, found[-1].name, sorted({number for topic in found for number in topic.partitions})
