"""The broker's sticky task assignor of streams groups (KIP-1071): balance has priority over stickiness.

Tasks are balanced over processes by the number of their members, which are the stream threads. Racks and
client tags are not used. Where Kafka follows the order of a hash table, this rule orders by process id, then
by member id. Source: StickyTaskAssignor, ProcessState.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from operator import itemgetter
from typing import Final

from msgspec import Struct

TasksOf = Mapping[str, Iterable[int]]
"""Partitions by the id of their subtopology."""

Task = tuple[str, int]
"""The id of a subtopology, and a partition."""


class TaskMember(Struct, frozen=True):
    """A member as the assignor sees it: its process, its present tasks, and its changelog offsets by task."""

    process_id: str
    active: TasksOf = {}
    standby: TasksOf = {}
    offsets: Mapping[Task, int] = {}  # of the tasks whose state it has on disk


class SubtopologyTasks(Struct, frozen=True):
    """The number of tasks of a subtopology. Only a stateful one, with changelog topics, has standby tasks."""

    count: int
    is_stateful: bool


class TargetTasks(Struct, frozen=True):
    """The tasks of one member in the target, by subtopology. The partitions are sorted."""

    active: dict[str, list[int]]
    standby: dict[str, list[int]]


class TaskAssignment(Struct, frozen=True):
    """The target of each member, and by task, the number of missing standby copies.

    A copy is missing if every process already has a copy of the task.
    """

    targets: dict[str, TargetTasks]
    missing_standbys: dict[Task, int]


class _Member:
    """A member while the target is computed. `count` is the number of its tasks in the target."""

    def __init__(self, member_id: str, process: "_Process") -> None:
        self.member_id = member_id
        self.process = process
        self.count = 0
        self.active: list[Task] = []
        self.standby: list[Task] = []


_StateHolder = tuple[bool, int, _Member]
"""A member that may have a task's state, after its sort keys: False if it has a standby copy, else True, and
the negated changelog offset, so that greater offsets come first.
"""


class _Process:
    """A process while the target is computed. `tasks` are all tasks of its members in the target."""

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        self.members: list[_Member] = []
        self.tasks = set[Task]()
        self._heap: list[tuple[int, str, _Member]] = []  # (number of tasks, member id, member)

    @property
    def load(self) -> float:
        """The tasks per member."""
        return len(self.tasks) / len(self.members)

    def add(self, member: _Member) -> None:
        self.members.append(member)
        # Members are added without tasks and in the order of their ids, so the list is a heap.
        self._heap.append((0, member.member_id, member))

    def least_loaded(self) -> _Member:
        """Return the member with the fewest tasks."""
        while True:
            count, member_id, member = self._heap[0]
            if count == member.count:
                return member
            # Counts only grow, so an outdated entry is too low and comes first.
            heapreplace(self._heap, (member.count, member_id, member))


class _Quota:
    """A limit on the tasks of a member: the open tasks divided by the open members, rounded up.

    At first all tasks and members are open. A member that reaches the limit is closed together with its
    tasks, so the limit of the other members may fall.
    """

    def __init__(self, tasks: int, members: int) -> None:
        self._open_tasks, self._open_members = tasks, members
        self._update_limit()

    def _update_limit(self) -> None:
        # `-(-x // y)` is the quotient rounded up.
        self.limit = -(-self._open_tasks // self._open_members) if self._open_members > 0 else 0

    def close_if_full(self, count: int) -> None:
        """Close a member that now has `count` tasks if this is the limit."""
        if count == self.limit:
            self._open_members -= 1
            self._open_tasks -= count
            self._update_limit()


class _ProcessesByLoad:
    """The processes, ordered by load."""

    def __init__(self, processes: Iterable[_Process]) -> None:
        self._processes = {process.process_id: process for process in processes}
        self._heap = [(process.load, process_id) for process_id, process in self._processes.items()]
        heapify(self._heap)

    def assign(self, task: Task, give: Callable[[Task, _Member], None]) -> bool:
        """Call `give` with the task and a member of the least loaded process that does not have the task.

        Return False if every process has it.
        """
        popped = list[_Process]()  # with the process that gets the task, whose load changes
        is_assigned = False
        while self._heap and not is_assigned:
            process = self._processes[heappop(self._heap)[1]]
            popped.append(process)
            if task not in process.tasks:
                give(task, process.least_loaded())
                is_assigned = True
        for process in popped:
            heappush(self._heap, (process.load, process.process_id))
        return is_assigned


class _TaskBalancer:
    """The computation of a target. First the active tasks are assigned, then the standby copies."""

    def __init__(
        self, members: Mapping[str, TaskMember], subtopologies: Mapping[str, SubtopologyTasks], standbys: int
    ) -> None:
        self._processes: dict[str, _Process] = {}
        self.members: dict[str, _Member] = {}
        self._present_owner: dict[Task, _Member] = {}  # the member that runs the active task at present
        self._standbys = standbys  # wanted copies of each stateful task
        self._active = [
            (id_, number) for id_ in sorted(subtopologies) for number in range(subtopologies[id_].count)
        ]
        self._stateful = [task for task in self._active if subtopologies[task[0]].is_stateful]
        state_holders: dict[Task, list[_StateHolder]] = {}
        for member_id, member in sorted(members.items(), key=lambda item: (item[1].process_id, item[0])):
            self._add(member_id, member, state_holders)
        self._state_holders = {
            task: [member for *_, member in sorted(holders, key=itemgetter(0, 1))]
            for task, holders in state_holders.items()
        }
        """By task, the members that may have its state, in the order of `_StateHolder`'s sort keys."""
        # A limit on active tasks alone, and one on active tasks and standby copies together.
        self._active_quota = _Quota(len(self._active), len(members))
        self._quota = _Quota(len(self._active) + standbys * len(self._stateful), len(members))
        self.missing_standbys = Counter[Task]()

    def _add(
        self, member_id: str, present: TaskMember, state_holders: dict[Task, list[_StateHolder]]
    ) -> None:
        """Add a member, which has no tasks in the target yet.

        Record the active tasks that it runs at present, and the tasks whose state it may have.
        """
        process = self._processes.setdefault(present.process_id, _Process(present.process_id))
        member = self.members[member_id] = _Member(member_id, process)
        process.add(member)
        for task in flat(present.active):
            self._present_owner.setdefault(task, member)
        standby = set(flat(present.standby))
        for task in standby.union(present.offsets):
            offset = present.offsets.get(task, -1)  # -1: unknown, so after all known offsets
            state_holders.setdefault(task, []).append((task not in standby, -offset, member))

    def assign_active(self) -> None:
        """Assign each active task to the member that runs it, else to one with its state, else to any.

        The first two get it only below their limit. Raise ValueError if there are tasks, but no members.
        """
        without_owner = []
        for task in sorted(self._active, key=_by_partition):
            member = self._present_owner.get(task)
            if member is not None and member.count < self._active_quota.limit:
                self._give_active(task, member)
            else:
                without_owner.append(task)
        without_state_holder = []
        for task in without_owner:
            member = _least_loaded(self._state_holders.get(task, ()))
            if member is not None and member.count < self._active_quota.limit:
                self._give_active(task, member)
            else:
                without_state_holder.append(task)
        processes = _ProcessesByLoad(self._processes.values())
        for task in sorted(without_state_holder):
            if not self._processes:
                raise ValueError("there are tasks, but no member to run them")
            processes.assign(task, self._give_active)

    def assign_standby(self) -> None:
        """Assign the standby copies of each task to members with its state, then to any other process.

        A copy is missing if every process already has one.
        """
        left_copies = []  # (task, number of copies that no member with its state gets)
        for task in sorted(self._stateful, key=_by_partition, reverse=True):
            for copies_given in range(self._standbys):
                member = self._sticky_standby(task)
                if member is None:
                    left_copies.append((task, self._standbys - copies_given))
                    break
                self._give_standby(task, member)
        processes = _ProcessesByLoad(self._processes.values())
        for task, copies in sorted(left_copies, reverse=True):
            assigned = sum(processes.assign(task, self._give_standby) for _ in range(copies))
            if assigned < copies:
                self.missing_standbys[task] = copies - assigned

    def _sticky_standby(self, task: Task) -> _Member | None:
        """Return the member with the task's state that should get its next copy, or None."""
        owner = self._present_owner.get(task)
        if owner is not None and self._may_get_copy(task, owner):
            return owner
        holders = self._state_holders.get(task, ())
        member = _least_loaded([holder for holder in holders if task not in holder.process.tasks])
        return member if member is not None and self._may_get_copy(task, member) else None

    def _may_get_copy(self, task: Task, member: _Member) -> bool:
        """Return True if the member is below its limit, and its process has no copy of the task."""
        return task not in member.process.tasks and member.count < self._quota.limit

    def _give_active(self, task: Task, member: _Member) -> None:
        """Assign an active task to a member."""
        member.active.append(task)
        self._record_task(task, member)
        self._active_quota.close_if_full(member.count)

    def _give_standby(self, task: Task, member: _Member) -> None:
        """Assign a standby copy of a task to a member."""
        member.standby.append(task)
        self._record_task(task, member)

    def _record_task(self, task: Task, member: _Member) -> None:
        """Record that a member has one more task, and close it in `_quota` if it is full."""
        member.process.tasks.add(task)
        member.count += 1
        self._quota.close_if_full(member.count)


def _by_partition(task: Task) -> tuple[int, str]:
    """Return the sort key of a task: its partition, then its subtopology."""
    return task[1], task[0]


def _least_loaded(candidates: Sequence[_Member]) -> _Member | None:
    """Return the first candidate, unless a later one has both fewer tasks and a process with less load.

    Without candidates, return None.
    """
    if not candidates:
        return None
    best = candidates[0]
    for member in candidates[1:]:
        if member.process.load < best.process.load and member.count < best.count:
            best = member
    return best


def flat(tasks: TasksOf) -> Iterator[Task]:
    """Yield the tasks of all subtopologies one by one."""
    return chain.from_iterable(((id_, number) for number in numbers) for id_, numbers in tasks.items())


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Return the sorted partitions of the tasks, by subtopology."""
    partitions: dict[str, list[int]] = {}
    for id_, number in sorted(tasks):
        partitions.setdefault(id_, []).append(number)
    return partitions


class StickyTaskAssignor:
    """Kafka's built-in assignor of streams groups. A process never has two copies of a task."""

    name: Final = "sticky"

    def assign(
        self,
        members: Mapping[str, TaskMember],
        subtopologies: Mapping[str, SubtopologyTasks],
        num_standby_replicas: int,
    ) -> TaskAssignment:
        """Return the target of every member, by member id.

        Raise ValueError if there are tasks but no member.
        """
        balancer = _TaskBalancer(members, subtopologies, num_standby_replicas)
        balancer.assign_active()
        balancer.assign_standby()
        targets = {
            member_id: TargetTasks(_by_subtopology(member.active), _by_subtopology(member.standby))
            for member_id, member in sorted(balancer.members.items())
        }
        return TaskAssignment(targets, dict(sorted(balancer.missing_standbys.items())))
