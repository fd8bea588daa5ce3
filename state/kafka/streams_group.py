"""A streams group (KIP-1071): its epochs, its topology, its members, and their tasks.

A topology, which the members send, consists of subtopologies. A task is one partition of a subtopology, and a
member has it in a role: as an active, standby or warm-up task. This file holds data and queries only;
`state.kafka.streams` changes a group. The order of the fields is the layout of the stored state. Source:
StreamsGroup.java, StreamsGroupMember.java, TasksTuple.java.

A row, such as KSO17, is a rule of docs/rules-streams.md.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from msgspec import Struct, field

from kafka_why.contract.kafka.history import NOT_READY, MemberState
from kafka_why.contract.kafka.snapshot import NamedPartitions, listed
from kafka_why.contract.kafka.streams_responses import StreamsEndpoint, StreamsTopology, TaskIds
from state.kafka.modern_group import EpochGroup, EpochMember
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
    """The state that only a streams group has (StreamsGroupState.java): topics are missing or have wrong
    numbers of partitions, so no member has a task.
    """

    NOT_READY = NOT_READY


class Role(StrEnum):
    """The role in which a member has a task. It processes an active task, keeps a copy of the state of a
    standby task, and builds such a copy for a warm-up task, which is to become active.
    """

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
        partitions = {
            f"{role} {subtopology}": numbers
            for role in Role
            for subtopology, numbers in by_subtopology(self.of(role)).items()
        }
        return dict(sorted(partitions.items()))

    def __str__(self) -> str:
        texts = [f"{name}_{number}" for name, numbers in self.shown().items() for number in numbers]
        return listed(texts, "task")


NO_TASKS = RoleTasks()


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Return the partitions, sorted, of the tasks of each subtopology."""
    partitions: dict[str, list[int]] = {}
    for subtopology, number in sorted(tasks):
        partitions.setdefault(subtopology, []).append(number)
    return partitions


def task_ids(tasks: Iterable[Task]) -> list[TaskIds]:
    """Return the tasks in the form of requests and responses, sorted."""
    return [TaskIds(subtopology, numbers) for subtopology, numbers in by_subtopology(tasks).items()]


class StreamsGroupMember(EpochMember):
    """One member of the group, a thread of an application. Times are in milliseconds."""

    topology_epoch: int = -1  # the epoch of the topology that the member sent
    process_id: str = ""  # "" if the member named no process
    user_endpoint: StreamsEndpoint | None = None  # for interactive queries, None if it answers none
    client_tags: dict[str, str] = field(default_factory=dict)
    member_epoch: int = 0
    previous_epoch: int = 0  # the member epoch before the last write of the assignment
    state: MemberState = MemberState.STABLE
    assigned: RoleTasks = NO_TASKS  # tasks that the member may run
    pending: RoleTasks = NO_TASKS  # tasks that the member has to give up
    # The epoch of the target that assigned each active task.
    assignment_epochs: dict[Task, int] = field(default_factory=dict)
    task_offsets: dict[Task, int] = field(default_factory=dict)  # as the member reported last
    task_end_offsets: dict[Task, int] = field(default_factory=dict)  # as the member reported last
    session_deadline_ms: int | None = None
    rebalance_deadline_ms: int | None = None
    revoking_since_ms: int | None = None
    offsets_reported_ms: int = 0  # when the member reported `task_offsets`

    @property
    def process(self) -> str:
        """The member's process. A member that named none is a process by itself (row KSB14)."""
        return self.process_id or self.member_id

    def has_all(self, owned: RoleTasks) -> bool:
        return all(set(owned.of(role)) <= set(self.assigned.of(role)) for role in Role)


class StreamsGroup(EpochGroup[StreamsGroupMember, RoleTasks], tag="KafkaStreams"):
    """The state of one streams group.

    The holders of tasks, the readers of topics and the configured topology are cached and not stored. Only
    the methods of this class change the fields from which these are computed, because the methods also update
    the caches.
    """

    type_name = "streams"
    noun = "tasks"
    protocol_type: ClassVar[str] = PROTOCOL_TYPE

    topology: StreamsTopology | None = None  # None until a member has sent one
    # The epoch of the topology if its topics existed and were valid at the last heartbeat, else -1.
    validated_topology_epoch: int = -1
    # The settings whose change needs a new target, as they were at the last heartbeat.
    assignment_configs: dict[str, str] = field(default_factory=dict)
    endpoint_epoch: int = 0  # grows when an endpoint or the tasks behind it change
    shutdown_requested_by: str = ""  # the id of the first member that asked for a shutdown, "" if none did
    initial_deadline_ms: int | None = None  # until then no target is computed, because more members may join
    # Why internal topics were not created, as gateways have reported since the group became NotReady.
    creation_failures: list[str] = field(default_factory=list)

    @property
    def state(self) -> StrEnum:
        is_not_ready = self.members and not self.is_ready
        return StreamsGroupState.NOT_READY if is_not_ready else super().state

    @property
    def is_ready(self) -> bool:
        """Return True if the topology's topics existed and were valid at the last heartbeat."""
        return self.topology is not None and self.topology.epoch == self.validated_topology_epoch

    why_expired = ("KSO17", "no member read the topic, and nothing was committed")

    def subscribed(self) -> set[str]:
        """Return the names of the topics that members read."""
        return set(self.readers) if self.members else set()

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

    @cached_property
    def configured(self) -> ConfiguredTopology | TopologyProblem | None:
        """The topology with its numbers of partitions and tasks, or the reason why it is not ready.

        None if there is no topology, or if no topics can make it ready.
        """
        try:
            return configure(self.topology, self.topics) if self.topology is not None else None
        except InvalidTopologyError:
            return None

    def set_topology(self, topology: StreamsTopology) -> None:
        """Set the topology, and forget the topics that only the old one required."""
        self.topology = topology
        for derived in ("readers", "required", "configured"):
            self.__dict__.pop(derived, None)
        self.topics = {name: topic for name, topic in self.topics.items() if name in self.required}

    def forget_configured(self) -> None:
        """Discard the cached `configured`, because the group's topics have changed."""
        self.__dict__.pop("configured", None)

    @cached_property
    def held(self) -> dict[Task, dict[str, set[Role]]]:
        """The roles in which members hold each task, by member id.

        A member holds the tasks that are assigned to it or that it has to give up.
        """
        held: dict[Task, dict[str, set[Role]]] = {}
        for member in self.members.values():
            _add_holder(held, member)
        return held

    def remove(self, member: StreamsGroupMember) -> None:
        """Remove a member with its tasks."""
        self.assign(member, NO_TASKS, NO_TASKS, {})
        super().remove(member)

    def assign(
        self, member: StreamsGroupMember, assigned: RoleTasks, pending: RoleTasks, epochs: Mapping[Task, int]
    ) -> None:
        """Set what the member holds. `epochs` has the assignment epoch of each active task."""
        self._set_may_be_behind(member)
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
        _add_holder(held, member)

    def keep_assigned(self, member: StreamsGroupMember) -> None:
        self.assign(member, member.assigned, NO_TASKS, dict.fromkeys(member.assigned.active, 0))


def _add_holder(held: dict[Task, dict[str, set[Role]]], member: StreamsGroupMember) -> None:
    """Add the member to the holders of its tasks."""
    for tasks in (member.assigned, member.pending):
        for role in Role:
            for task in tasks.of(role):
                held.setdefault(task, {}).setdefault(member.member_id, set()).add(role)
