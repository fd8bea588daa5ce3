"""A share group (KIP-932): its epochs, members, target assignment, and the state of its partitions.

The share coordinator, a part of Kafka's brokers, stores the offsets of a share group's partitions. A
partition can be assigned only when this state is initialized. A task is a request of this group to the share
coordinator, to initialize or to delete state. This file holds data and queries only; `state.kafka.share`
changes a group. The order of the fields is the layout of the stored state. Source: ShareGroup.java,
ShareGroupMember.java, ShareGroupStatePartitionMetadataValue.json.

A row, such as SP15, is a rule of docs/rules-share.md.
"""

from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from msgspec import Struct, field

from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.snapshot import Partitions
from state.kafka.group import Topic
from state.kafka.modern_group import ModernGroup

PROTOCOL_TYPE = "share"
LEAVE_GROUP_MEMBER_EPOCH = -1

NO_START_OFFSET = -1
"""The partition leader decides the start offset, by `share.auto.offset.reset`."""


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
    session_timeout_ms: ClassVar[None] = None
    """The group's session timeout counts."""
    rebalance_timeout_ms: ClassVar[int] = 0
    """Members revoke nothing."""


class InitializationTask(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to the share coordinator to initialize a partition.

    After an error, the next heartbeat repeats the request with the same `state_epoch` and `start_offset`, so
    that an equal epoch always means equal state (SP16).
    """

    task: str  # the id of the open task, "" if the task ended with the error `error_code`
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
    # By number, the error with which the deletion failed, or 0 while the outcome is awaited. A deleted
    # partition is removed.
    partitions: dict[int, int]
    task: str  # the id of the open task, "" if the task ended with an error
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
    """A request that is answered when the share coordinator has answered, or at `deadline_ms`. A DeleteGroups
    has no `topics`, because it waits for the deletion of the whole group.
    """

    kind: ParkedKind
    reply_to: ReplyTo
    deadline_ms: int
    topics: list[ParkedTopic] = []


class ShareGroup(ModernGroup[ShareMember], tag="KafkaShare"):
    """The state of one share group. It is Empty without members (row SG4), else Stable (row SG5).

    Only the methods of this class change the members, their topics and the target, because the methods also
    update cached values.
    """

    type_name = "share"
    protocol_type: ClassVar[str] = PROTOCOL_TYPE

    target: dict[str, Partitions] = field(default_factory=dict)  # by member id
    topics: dict[str, Topic | None] = field(default_factory=dict)  # None for a missing topic
    initializing: dict[bytes, InitializingTopic] = field(default_factory=dict)  # by topic id, as the next two
    initialized: dict[bytes, InitializedTopic] = field(default_factory=dict)  # partitions that can be used
    deleting: dict[bytes, DeletingTopic] = field(default_factory=dict)
    deletion: str = ""  # the id of the task that deletes the whole group, "" without one
    parked: list[Parked] = field(default_factory=list)  # requests that wait for the share coordinator
    # When the open tasks are checked, None if no task is open or all are recorded as overdue.
    overdue_deadline_ms: int | None = None
    noted_until_ms: int = 0  # open tasks requested up to this time are recorded as overdue (row SP15)

    @property
    def is_rebalancing(self) -> bool:
        """Return True if a target assignment has to be computed."""
        return self.group_epoch > self.assignment_epoch

    def _is_moving(self) -> bool:
        """Return True unless each member has the target of the group epoch."""
        epoch = self.assignment_epoch
        return self.group_epoch != epoch or any(m.member_epoch != epoch for m in self.members.values())

    def is_over(self) -> bool:
        """Return False: a share group never ends by itself (row SG6)."""
        return False

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
            self.set_target({id_: target for id_, target in self.target.items() if id_ != member.member_id})
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

    def assignable(self, topic: Topic) -> list[int]:
        """Return the sorted partitions of the topic that can be assigned: those whose state is initialized
        and is not being rewritten.
        """
        initialized = self.initialized.get(topic.topic_id)
        if initialized is None:
            return []
        initializing = self.initializing.get(topic.topic_id)
        rewritten = () if initializing is None else initializing.partitions
        return [p for p in initialized.partitions if p < topic.partitions and p not in rewritten]

    def state_partitions(self) -> Iterator[tuple[bytes, str, list[int]]]:
        """Yield all state that the share coordinator may have of the group: topic id, topic name and sorted
        partitions.
        """
        for topic_id in sorted(self.initializing.keys() | self.initialized.keys() | self.deleting.keys()):
            by_progress = (self.initializing, self.initialized, self.deleting)
            topics = [by_topic_id[topic_id] for by_topic_id in by_progress if topic_id in by_topic_id]
            yield topic_id, topics[-1].name, sorted({n for topic in topics for n in topic.partitions})
