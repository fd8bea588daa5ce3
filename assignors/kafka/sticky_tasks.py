"""The broker's sticky task assignor of streams groups (KIP-1071): balance has priority over stickiness.

Tasks are balanced over processes by the number of their members, which are the stream threads. Racks and
client tags are not used. Rows KSK1 to KSK9. Where Kafka follows the order of a hash table, this rule orders
by process id, then by member id. Source: StickyTaskAssignor, ProcessState.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    offsets: Mapping[Task, int] = {}


class SubtopologyTasks(Struct, frozen=True):
    """The number of tasks of a subtopology. Only a stateful one, with changelog topics, has standby tasks."""

    count: int
    is_stateful: bool


class TargetTasks(Struct, frozen=True):
    """The tasks of one member in the target, by subtopology. The partitions are sorted."""

    active: dict[str, list[int]]
    standby: dict[str, list[int]]


class TaskAssignment(Struct, frozen=True):
    """The target of each member, and the standby copies of each task that no process can run (row KSK6)."""

    targets: dict[str, TargetTasks]
    missing_standbys: dict[Task, int]


class NoMembersError(Exception):
    """There are tasks, but no member to run them (row KSK4)."""


class _Member:
    """A member while the target is computed. `count` is the number of its tasks in the target."""

    def __init__(self, member_id: str, process: "_Process") -> None:
        self.member_id = member_id
        self.process = process
        self.count = 0
        self.active: list[Task] = []
        self.standby: list[Task] = []


_Reporting = tuple[bool, int, _Member]
"""A member that may have state of a task: False for a standby, and the negative offset."""


class _Process:
    """A process while the target is computed. `tasks` are all tasks of its members in the target."""

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        self.members: list[_Member] = []
        self.tasks = set[Task]()
        self._heap: list[tuple[int, str, _Member]] = []

    @property
    def load(self) -> float:
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
    """The number of tasks that a member gets before other members get tasks (row KSK1)."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self._divide()

    def _divide(self) -> None:
        self.tasks = -(-self._tasks // self._members) if self._members > 0 else 0

    def note(self, count: int) -> None:
        if count == self.tasks:
            # The member leaves with its tasks, and the rest is divided again.
            self._members -= 1
            self._tasks -= count
            self._divide()


class _ProcessesByLoad:
    def __init__(self, processes: Iterable[_Process]) -> None:
        self._processes = {process.process_id: process for process in processes}
        self._heap = [(process.load, process_id) for process_id, process in self._processes.items()]
        heapify(self._heap)

    def without(self, task: Task) -> Iterator[_Process]:
        """Yield at most once: the least loaded process that does not have the task.

        The caller adds the task to it before it resumes the iterator.
        """
        passed = list[_Process]()
        while self._heap:
            process = self._processes[heappop(self._heap)[1]]
            passed.append(process)
            if task not in process.tasks:
                yield process
                break
        for process in passed:
            heappush(self._heap, (process.load, process.process_id))


class _Builder:
    def __init__(
        self, members: Mapping[str, TaskMember], subtopologies: Mapping[str, SubtopologyTasks], standbys: int
    ) -> None:
        self._processes: dict[str, _Process] = {}
        self.members: dict[str, _Member] = {}
        self._was_active: dict[Task, _Member] = {}
        self._standbys = standbys
        self._active = [
            (id_, number) for id_ in sorted(subtopologies) for number in range(subtopologies[id_].count)
        ]
        self._stateful = [task for task in self._active if subtopologies[task[0]].is_stateful]
        reporting: dict[Task, list[_Reporting]] = {}
        for member_id, given in sorted(members.items(), key=lambda item: (item[1].process_id, item[0])):
            self._add(member_id, given, reporting)
        self._candidates = {
            task: [member for *_, member in sorted(found, key=itemgetter(0, 1))]
            for task, found in reporting.items()
        }
        """The members that may have state of each task, standbys first, then by offset (row KSK3)."""
        self._active_quota = _Quota(len(self._active), len(members))
        self._quota = _Quota(len(self._active) + standbys * len(self._stateful), len(members))
        self.missing_standbys = Counter[Task]()

    def _add(self, member_id: str, given: TaskMember, reporting: dict[Task, list[_Reporting]]) -> None:
        process = self._processes.setdefault(given.process_id, _Process(given.process_id))
        member = self.members[member_id] = _Member(member_id, process)
        process.add(member)
        for task in flat(given.active):
            self._was_active.setdefault(task, member)
        standby = set(flat(given.standby))
        for task in standby.union(given.offsets):
            offset = given.offsets.get(task, -1)
            reporting.setdefault(task, []).append((task not in standby, -offset, member))

    def assign_active(self) -> None:
        """Rows KSK2 to KSK4: a member keeps its tasks, then members with state get them, then any member."""
        left = []
        for task in sorted(self._active, key=_by_partition):
            member = self._was_active.get(task)
            if member is not None and member.count < self._active_quota.tasks:
                self._give_active(task, member)
            else:
                left.append(task)
        rest = []
        for task in left:
            member = _least_loaded(self._candidates.get(task, ()))
            if member is not None and member.count < self._active_quota.tasks:
                self._give_active(task, member)
            else:
                rest.append(task)
        least_loaded = _ProcessesByLoad(self._processes.values())
        for task in sorted(rest):
            if not self._processes:
                raise NoMembersError
            for process in least_loaded.without(task):
                self._give_active(task, process.least_loaded())

    def assign_standby(self) -> None:
        """Rows KSK5 and KSK6: members with state get the copies, then any process without a copy."""
        rest = []
        for task in sorted(self._stateful, key=_by_partition, reverse=True):
            for copy in range(self._standbys):
                member = self._sticky_standby(task)
                if member is None:
                    rest.append((task, self._standbys - copy))
                    break
                self._give_standby(task, member)
        least_loaded = _ProcessesByLoad(self._processes.values())
        for task, copies in sorted(rest, reverse=True):
            given = 0
            for _ in range(copies):
                for process in least_loaded.without(task):
                    self._give_standby(task, process.least_loaded())
                    given += 1
            if given < copies:
                self.missing_standbys[task] = copies - given

    def _sticky_standby(self, task: Task) -> _Member | None:
        """Row KSK5: return the member that should get this copy because it has the task's state, or None."""
        owner = self._was_active.get(task)
        if owner is not None and self._may_get_copy(task, owner):
            return owner
        free = [member for member in self._candidates.get(task, ()) if task not in member.process.tasks]
        member = _least_loaded(free)
        return member if member is not None and self._may_get_copy(task, member) else None

    def _may_get_copy(self, task: Task, member: _Member) -> bool:
        return task not in member.process.tasks and member.count < self._quota.tasks

    def _give_active(self, task: Task, member: _Member) -> None:
        member.active.append(task)
        self._count(task, member)
        self._active_quota.note(member.count)

    def _give_standby(self, task: Task, member: _Member) -> None:
        member.standby.append(task)
        self._count(task, member)

    def _count(self, task: Task, member: _Member) -> None:
        member.process.tasks.add(task)
        member.count += 1
        self._quota.note(member.count)


def _by_partition(task: Task) -> tuple[int, str]:
    return task[1], task[0]


def _least_loaded(candidates: Sequence[_Member]) -> _Member | None:
    """Return the first candidate, or a later one with fewer tasks in a process with less load (row KSK3)."""
    if not candidates:
        return None
    best = candidates[0]
    for member in candidates[1:]:
        if member.process.load < best.process.load and member.count < best.count:
            best = member
    return best


def flat(tasks: TasksOf) -> Iterator[Task]:
    """Yield the tasks one by one."""
    return chain.from_iterable(((id_, number) for number in numbers) for id_, numbers in tasks.items())


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for id_, number in sorted(tasks):
        found.setdefault(id_, []).append(number)
    return found


class StickyTaskAssignor:
    """Kafka's built-in assignor of streams groups. A process never has two copies of a task (row KSK7)."""

    name: Final = "sticky"

    def assign(
        self,
        members: Mapping[str, TaskMember],
        subtopologies: Mapping[str, SubtopologyTasks],
        num_standby_replicas: int,
    ) -> TaskAssignment:
        """Return the tasks of every member, by member id.

        NoMembersError: there are tasks, but no member.
        """
        builder = _Builder(members, subtopologies, num_standby_replicas)
        builder.assign_active()
        builder.assign_standby()
        targets = {
            member_id: TargetTasks(_by_subtopology(member.active), _by_subtopology(member.standby))
            for member_id, member in sorted(builder.members.items())
        }
        return TaskAssignment(targets, dict(sorted(builder.missing_standbys.items())))
