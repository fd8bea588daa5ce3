"""A streams group (KIP-1071): its epochs, its topology, its members, and their tasks.

This file holds data and queries only; `state.kafka.streams` changes a group. The order of the fields is the
layout of the stored state. A task is a subtopology and a partition, and a member has it in a role. Source:
StreamsGroup.java, StreamsGroupMember.java, TasksTuple.java.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from msgspec import Struct, field

from kafka_why.contract.kafka.history import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    NOT_READY,
    ConsumerGroupState,
    MemberState,
)
from kafka_why.contract.kafka.snapshot import NamedPartitions, listed
from kafka_why.contract.kafka.streams_responses import StreamsEndpoint, StreamsTopology, TaskIds
from state.kafka.group import ModernGroup, Topic
from state.kafka.streams_topics import (
    ConfiguredTopology,
    InvalidTopologyError,
    TopologyProblem,
    configure,
    required_topics,
    source_topics,
)

PROTOCOL_TYPE = "streams"

Task = tuple[str, int]
"""The id of a subtopology, and a partition."""


class StreamsGroupState(StrEnum):
    """The state of a group (StreamsGroupState.java). In NotReady its topics are not right, so no member has a
    task.
    """

    EMPTY = ConsumerGroupState.EMPTY.value
    NOT_READY = NOT_READY
    ASSIGNING = ConsumerGroupState.ASSIGNING.value
    RECONCILING = ConsumerGroupState.RECONCILING.value
    STABLE = ConsumerGroupState.STABLE.value


class Role(StrEnum):
    """The roles of a task."""

    ACTIVE = "active"
    STANDBY = "standby"
    WARM_UP = "warm-up"


class RoleTasks(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Tasks by role, each list sorted."""

    active: list[Task] = []
    standby: list[Task] = []
    warm_up: list[Task] = []

    def of(self, role: Role) -> list[Task]:
        """Return the tasks of a role."""
        return {Role.ACTIVE: self.active, Role.STANDBY: self.standby, Role.WARM_UP: self.warm_up}[role]

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warm_up)

    def shown(self) -> NamedPartitions:
        """Return the tasks by role and subtopology (`active 0`), as views and the history show them."""
        shown = {
            f"{role} {subtopology}": numbers
            for role in Role
            for subtopology, numbers in by_subtopology(self.of(role)).items()
        }
        return dict(sorted(shown.items()))

    def __str__(self) -> str:
        texts = [f"{name}_{number}" for name, numbers in self.shown().items() for number in numbers]
        return listed(texts, "task")


NO_TASKS = RoleTasks()


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Return the partitions, sorted, of the tasks of each subtopology."""
    found: dict[str, list[int]] = {}
    for subtopology, number in sorted(tasks):
        found.setdefault(subtopology, []).append(number)
    return found


def task_ids(tasks: Iterable[Task]) -> list[TaskIds]:
    """Return the tasks in the form of requests and responses, sorted."""
    return [TaskIds(subtopology, numbers) for subtopology, numbers in by_subtopology(tasks).items()]


class StreamsGroupMember(Struct, array_like=True, forbid_unknown_fields=True):
    """One member of the group, a thread of an application. Times are in milliseconds."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: StreamsEndpoint | None = None
    client_tags: dict[str, str] = {}
    member_epoch: int = 0
    previous_epoch: int = 0  # the member epoch before the last write of the assignment
    state: MemberState = MemberState.STABLE
    assigned: RoleTasks = NO_TASKS  # tasks that the member may run
    pending: RoleTasks = NO_TASKS  # tasks that the member has to give up
    assignment_epochs: dict[Task, int] = {}  # the epoch of the target that assigned each active task
    task_offsets: dict[Task, int] = {}  # as the member reported last
    task_end_offsets: dict[Task, int] = {}  # as the member reported last
    session_deadline_ms: int | None = None
    rebalance_deadline_ms: int | None = None
    revoking_since_ms: int | None = None

    @property
    def process(self) -> str:
        """The member's process. A member that named none is a process by itself (row KSB14)."""
        return self.process_id or self.member_id

    @property
    def is_away(self) -> bool:
        """Return True if the static member has left for a while."""
        return self.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return True if the member has reached the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch


class StreamsGroup(ModernGroup, tag="KafkaStreams"):
    """The state of one streams group.

    The holders of tasks, the readers of topics and the configured topology are derived and not stored. Only
    the methods of this class change what they are derived from.
    """

    type_name = "streams"
    protocol_type: ClassVar[str] = PROTOCOL_TYPE

    members: dict[str, StreamsGroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # group.instance.id -> member id
    target: dict[str, RoleTasks] = field(default_factory=dict)  # by member id
    target_assignor: str = ""  # the name of the assignor that computed the target
    topics: dict[str, Topic | None] = field(default_factory=dict)  # None for a missing topic
    topology: StreamsTopology | None = None
    # The epoch of the topology if its topics were right at the last heartbeat, else -1.
    validated_topology_epoch: int = -1
    assignment_configs: dict[str, str] = field(default_factory=dict)  # at the last change of the group epoch
    endpoint_epoch: int = 0  # grows when an endpoint or the tasks behind it change
    shutdown_requested_by: str = ""  # a member id
    initial_deadline_ms: int | None = None  # until then no target is computed, because more members may join

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if not self.is_ready:
            return StreamsGroupState.NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled_to(epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def is_ready(self) -> bool:
        """Return True if the topology's topics were right at the last heartbeat."""
        return self.topology is not None and self.topology.epoch == self.validated_topology_epoch

    @property
    def is_rebalancing(self) -> bool:
        """Return True if a target assignment has to be computed, or a member has not reached it.

        A member that has just joined, or is away, does not count.
        """
        epoch = self.assignment_epoch
        return self.group_epoch > epoch or any(
            member.member_epoch > 0 and not member.is_reconciled_to(epoch) for member in self.members.values()
        )

    @cached_property
    def progress(self) -> tuple[StreamsGroupState, bool]:
        """The state at the end of a step, and True if there is a rebalance; derived anew after
        `forget_progress`.
        """
        return self.state, self.is_rebalancing

    def forget_progress(self) -> None:
        """Derive `progress` anew at its next use, because a step has changed the group."""
        self.__dict__.pop("progress", None)

    @property
    def is_empty(self) -> bool:
        return not self.members

    def is_consumer_group(self) -> bool:
        """Return True: as in a consumer group, offsets can be deleted while there are members (row KSO16)."""
        return True

    def why_expired(self) -> tuple[str, str]:
        """Return the row by which unused offsets of this group expire, and the reason for the history."""
        return "KSO17", "no member read the topic, and nothing was committed"

    def subscribed(self) -> set[str]:
        """Return the names of the topics that members read."""
        return set(self.readers) if self.members else set()

    def subscribed_of(self, topics: Iterable[str]) -> set[str]:
        """Return the topics among these that members read."""
        return self.subscribed().intersection(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Return True if members read the topic."""
        return bool(self.members) and topic in self.readers

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """The subtopologies that read each topic."""
        readers: dict[str, list[str]] = {}
        for subtopology in self.topology.subtopologies if self.topology is not None else ():
            for name in source_topics(subtopology):
                readers.setdefault(name, []).append(subtopology.subtopology_id)
        return readers

    @cached_property
    def required(self) -> set[str]:
        """The names of the topics that the topology requires."""
        return required_topics(self.topology) if self.topology is not None else set()

    def required_topics(self) -> set[str]:
        return self.required

    def unknown_topics(self) -> list[str]:
        """Return the sorted required names that are not among the known topics (row MI12)."""
        return sorted(self.required - self.topics.keys())

    @cached_property
    def configured(self) -> ConfiguredTopology | TopologyProblem | None:
        """The topology with its numbers of partitions and tasks, or why it is not ready.

        None without a topology, and if no topics can make it ready.
        """
        try:
            return configure(self.topology, self.topics) if self.topology is not None else None
        except InvalidTopologyError:
            return None

    def set_topology(self, topology: StreamsTopology) -> None:
        """Set the topology, and forget the topics that only the former one required."""
        self.topology = topology
        for derived in ("readers", "required", "configured"):
            self.__dict__.pop(derived, None)
        self.topics = {name: topic for name, topic in self.topics.items() if name in self.required}

    def forget_configured(self) -> None:
        """Derive the configured topology anew at its next use, because the known topics have changed."""
        self.__dict__.pop("configured", None)

    @cached_property
    def held(self) -> dict[Task, dict[str, set[Role]]]:
        """The roles in which members hold each task, by member id.

        A member holds the tasks that are assigned to it or that it has to give up.
        """
        held: dict[Task, dict[str, set[Role]]] = {}
        for member in self.members.values():
            _hold(held, member)
        return held

    def add(self, member: StreamsGroupMember) -> None:
        """Add a member that holds no tasks yet."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove(self, member: StreamsGroupMember) -> None:
        """Remove a member with its tasks, its target and its instance id."""
        self.assign(member, NO_TASKS, NO_TASKS, {})
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]

    def assign(
        self, member: StreamsGroupMember, assigned: RoleTasks, pending: RoleTasks, epochs: Mapping[Task, int]
    ) -> None:
        """Set what the member holds. `epochs` has the assignment epoch of each active task."""
        held = self.held
        for tasks in (member.assigned, member.pending):
            for role in Role:
                for task in tasks.of(role):
                    holders = held.get(task, {})
                    holders.pop(member.member_id, None)
                    if not holders:
                        held.pop(task, None)
        member.assigned, member.pending = assigned, pending
        member.assignment_epochs = {
            task: epochs[task] for task in sorted({*assigned.active, *pending.active})
        }
        _hold(held, member)


def _hold(held: dict[Task, dict[str, set[Role]]], member: StreamsGroupMember) -> None:
    for tasks in (member.assigned, member.pending):
        for role in Role:
            for task in tasks.of(role):
                held.setdefault(task, {}).setdefault(member.member_id, set()).add(role)
