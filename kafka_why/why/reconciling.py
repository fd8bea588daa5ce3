"""Tracks which partitions the members of a consumer, share or streams group have, give up and wait for."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from kafka_why.contract.kafka.history import (
    NOT_READY,
    STREAMS,
    ConsumerGroupState,
    EntryType,
    HistoryEntry,
    MemberState,
)
from kafka_why.contract.protocols.streams_protocol import ACTIVE, STANDBY, role_and_task, task_holder
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition, by_topic
from kafka_why.why.model import AwaitedPartitions, Idle, Moves, Progress, Rebalance, StreamsNow, TaskMoves
from kafka_why.why.moves import Holdings, Partitions, compare
from kafka_why.wording import Clock, Lines, Names, count, duration_text, shortened

_NOTHING: Partitions = frozenset()


def flat(partitions: Mapping[str, Iterable[int]] | None) -> Partitions:
    """Return the partitions of all topics as one set."""
    return frozenset(TopicPartition(topic, n) for topic, ns in (partitions or {}).items() for n in ns)


@dataclass(slots=True)
class _MemberProgress:
    revoked: set[TopicPartition] = field(default_factory=set)
    revoking_ms: int | None = None
    waited_for: dict[TopicPartition, MemberId | None] = field(default_factory=dict)
    waiting_since_ms: int | None = None
    waited_until_ms: int | None = None
    settled_ms: int | None = None
    fenced_after_ms: int | None = None


class ReconciliationTracker:
    """A tracker of each member's partitions during rebalances. `begin` starts a rebalance.

    `assigned` has the partitions that each member may use. `is_complete` is True if the history shows them
    for all members. `processes` are those of a streams group's members.
    """

    def __init__(self, assigned: Mapping[MemberId, Partitions] | None) -> None:
        self.assigned: dict[MemberId, Partitions] = dict(assigned or {})
        self.processes: dict[MemberId, str] = {}
        self.is_complete = assigned is not None
        self._revoking: dict[MemberId, Partitions] = {}
        self._progress: dict[MemberId, _MemberProgress] = {}
        self._free_since: dict[TopicPartition, int] = {}
        self._idle_ms: dict[TopicPartition, int] = {}
        self._longest_ms = 0

    def begin(self) -> None:
        """Begin a rebalance. Partitions that are already free count as idle in it, too."""
        self._progress, self._idle_ms, self._longest_ms = {}, {}, 0

    def lose_track(self) -> None:
        """Forget the members' partitions. They may have changed, because entries are missing."""
        self.assigned, self._revoking, self.is_complete = {}, {}, False
        self._free_since = {}

    def apply(self, event: HistoryEntry) -> None:
        """Apply one entry."""
        member_id = event.member_id
        if member_id is not None and event.process_id is not None:
            self.processes[member_id] = event.process_id
        match event.type:
            case EntryType.MEMBER_ADDED if member_id is not None:
                self.assigned.setdefault(member_id, _NOTHING)
            case EntryType.MEMBER_REPLACED if member_id is not None:
                self._replace(event.replaced_member_id or "", member_id)
            case EntryType.MEMBER_REMOVED if member_id is not None:
                self._set(member_id, _NOTHING, event)
                self.assigned.pop(member_id, None)
                self._revoking.pop(member_id, None)
            case EntryType.MEMBER_RECONCILED if member_id is not None:
                self._reconcile(member_id, event)
            case EntryType.SHARE_PARTITIONS_INITIALIZED:
                free = flat(event.partitions).difference(*self.assigned.values())
                self._free_since.update(dict.fromkeys(free, event.at_ms))
            case EntryType.STABLE if event.members is not None:
                self.is_complete = self.assigned.keys() >= set(event.members)
            case EntryType.EMPTY:
                self.assigned, self._revoking, self.is_complete = {}, {}, True
            case EntryType.GROUP_CONVERTED if event.targets is not None:
                self.assigned = {m: flat(partitions) for m, partitions in event.targets.items()}
                self.is_complete = True

    def _replace(self, old: MemberId, new: MemberId) -> None:
        for held in (self.assigned, self._revoking):
            if old in held:
                held[new] = held.pop(old)
        if old in self._progress:
            self._progress[new] = self._progress.pop(old)

    def _reconcile(self, member_id: MemberId, event: HistoryEntry) -> None:
        progress = self._progress.setdefault(member_id, _MemberProgress())
        revoking, awaiting = flat(event.revoking), flat(event.awaiting)
        before = self._revoking.get(member_id, _NOTHING)
        if before and event.took_ms is not None:
            progress.revoking_ms = max(event.took_ms, progress.revoking_ms or 0)
        if revoking - before:
            progress.revoked |= revoking
        if new := sorted(awaiting - progress.waited_for.keys()):
            progress.waited_for |= self._holders(member_id, new, event.group_type)
        if awaiting and progress.waiting_since_ms is None:
            progress.waiting_since_ms = event.at_ms
        if not awaiting and progress.waiting_since_ms is not None and progress.waited_until_ms is None:
            progress.waited_until_ms = event.at_ms
        has_deadline = revoking and event.deadline_ms is not None
        progress.fenced_after_ms = (event.deadline_ms or 0) - event.at_ms if has_deadline else None
        self._revoking[member_id] = revoking
        self._set(member_id, flat(event.assigned), event)
        settled = event.member_state == MemberState.STABLE and event.member_epoch == event.assignment_epoch
        progress.settled_ms = event.at_ms if settled else None

    def _holders(
        self, member_id: MemberId, awaited: Iterable[TopicPartition], group_type: str
    ) -> dict[TopicPartition, MemberId | None]:
        """Return the member from which each partition is awaited, or None if it has left."""
        held = self._held()
        if group_type == STREAMS:
            return {p: task_holder(p, member_id, held, self.processes) for p in awaited}
        holders = {
            p: holder for holder, partitions in held.items() for p in partitions if holder != member_id
        }
        return {p: holders.get(p) for p in awaited}

    def _held(self) -> dict[MemberId, Partitions]:
        """Return the partitions that each member may use or has not given up yet."""
        return {
            m: self.assigned.get(m, _NOTHING) | self._revoking.get(m, _NOTHING)
            for m in {**self.assigned, **self._revoking}
        }

    def _set(self, member_id: MemberId, partitions: Partitions, event: HistoryEntry) -> None:
        """Set the partitions that a member may use, and record how long they had no consumer."""
        before, at_ms = self.assigned.get(member_id, _NOTHING), event.at_ms
        freed = before - partitions
        if event.group_type == "share":  # other members may have them, too
            freed -= _NOTHING.union(*(held for m, held in self.assigned.items() if m != member_id))
        for partition in freed:
            self._free_since[partition] = at_ms
        for partition in partitions - before:
            if event.group_type == STREAMS and role_and_task(partition)[0] != ACTIVE:
                continue  # a standby task does not consume
            since_ms = self._free_since.pop(partition, at_ms)
            if at_ms > since_ms:
                self._idle_ms[partition] = self._idle_ms.get(partition, 0) + at_ms - since_ms
                self._longest_ms = max(self._longest_ms, at_ms - since_ms)
        self.assigned[member_id] = partitions

    def idle(self) -> Idle:
        """Return the idle time of partitions that had no consumer and now have one.

        A partition is idle from the response that took it from one member until the response that gave it to
        the next.
        """
        return Idle(len(self._idle_ms), sum(self._idle_ms.values()), self._longest_ms)

    def progress(self, began_ms: int) -> list[Progress]:
        """Return the progress of the members that gave up, waited for or got partitions."""
        return [
            Progress(
                member_id=member_id,
                revoked=by_topic(progress.revoked),
                revoking_ms=None if self._revoking.get(member_id) else progress.revoking_ms,
                waited_for=[
                    AwaitedPartitions(
                        by_topic(p for p, of in progress.waited_for.items() if of == holder), holder
                    )
                    for holder in dict.fromkeys(progress.waited_for.values())
                ],
                waiting_ms=(
                    None
                    if progress.waited_until_ms is None or progress.waiting_since_ms is None
                    else progress.waited_until_ms - progress.waiting_since_ms
                ),
                settled_after_ms=None if progress.settled_ms is None else progress.settled_ms - began_ms,
                fenced_after_ms=progress.fenced_after_ms,
            )
            for member_id, progress in self._progress.items()
        ]


# The tasks of a streams group: where a moved task found its state, and why members have no tasks.


_NO_TASKS = "KSA6"
"""The row of a target assignment without tasks, because the topology is not ready."""


def active_only(holdings: Holdings) -> Holdings:
    """Return the active tasks of each member, with subtopologies as topics."""
    return {member_id: frozenset(_in_role(held, ACTIVE)) for member_id, held in holdings.items()}


def compare_tasks(before: Holdings, after: Holdings) -> Moves:
    """Compare two assignments of a streams group.

    The numbers are of active tasks, the members' changes of all tasks. `needless` is None, because no minimum
    is defined.
    """
    members = compare(before, after).members
    return replace(compare(active_only(before), active_only(after)), members=members, needless=None)


def task_moves(before: Holdings, after: Holdings, processes: Mapping[MemberId, str]) -> TaskMoves:
    """Compare the tasks before and after a rebalance.

    `processes` has the process of each member. A member without one counts as a process by itself.
    """
    had: dict[str, set[TopicPartition]] = {}
    for member_id, held in before.items():
        of_process = had.setdefault(processes.get(member_id, member_id), set())
        of_process.update(task for _, task in map(role_and_task, held))
    owned = {task: member_id for member_id, held in before.items() for task in _in_role(held, ACTIVE)}
    promoted, without_copy, standby, new_standby = set(), set(), 0, 0
    for member_id, held in after.items():
        known = had.get(processes.get(member_id, member_id), set())
        moved = {task for task in _in_role(held, ACTIVE) if owned.get(task, member_id) != member_id}
        promoted |= moved & known
        without_copy |= moved - known
        copies = set(_in_role(held, STANDBY))
        standby += len(copies)
        new_standby += len(copies - known)
    return TaskMoves(
        promoted=by_topic(promoted),
        without_copy=by_topic(without_copy),
        standby=standby,
        new_standby=new_standby,
    )


def _in_role(held: Partitions, role: str) -> Iterator[TopicPartition]:
    return (task for found_role, task in map(role_and_task, held) if found_role == role)


def tasks_of(partitions: Mapping[str, list[int]] | None) -> dict[str, list[int]]:
    """Return tasks by subtopology, from tasks by role and subtopology."""
    return {topic.partition(" ")[2]: numbers for topic, numbers in (partitions or {}).items()}


def task_lines(r: Rebalance) -> Lines:
    """Yield where the moved tasks found their state, and which standby tasks lack copies."""
    if r.tasks is not None:
        yield from _state_lines(r.tasks)
    missing = next(
        (new.missing_standbys for new in reversed(r.epochs) if new.target_after_ms is not None), {}
    )
    if missing:
        yield "missing", f"copies of standby tasks {_listed(missing)}, because there are too few processes"


def _state_lines(tasks: TaskMoves) -> Lines:
    parts = []
    if tasks.promoted:
        parts.append(f"already in the new owner's process for {_listed(tasks.promoted)}")
    if tasks.without_copy:
        parts.append(f"no copy there of {_listed(tasks.without_copy)}, which restore it if they have any")
    if parts:
        yield "state", "; ".join(parts)
    if tasks.standby:
        new = f", {tasks.new_standby} in a process that did not have the task" if tasks.new_standby else ""
        yield "standbys", f"{count(tasks.standby, 'task')}{new}"


def _listed(tasks: Mapping[str, Iterable[int]]) -> str:
    """Return the tasks under Kafka's names, such as `0_2, 0_3`."""
    return shortened(
        [f"{subtopology}_{number}" for subtopology, numbers in tasks.items() for number in numbers]
    )


def streams_now(entries: Iterable[HistoryEntry]) -> StreamsNow | None:
    """Return the state of a streams group after the entries of its life, or None for another group."""
    not_ready: HistoryEntry | None = None
    since_ms = 0
    shutdown: HistoryEntry | None = None
    last: HistoryEntry | None = None
    delayed_until_ms: int | None = None
    for event in entries:
        last = event
        if event.group_type != STREAMS:
            continue
        if event.to_state != NOT_READY:
            not_ready = None
        elif event.type is EntryType.GROUP_EPOCH_BUMPED or event.rule == _NO_TASKS:
            since_ms = event.at_ms if not_ready is None else since_ms
            not_ready = event
        if event.type in (EntryType.ASSIGNMENT_DELAYED, EntryType.TAKEN_OVER):
            delayed_until_ms = event.deadline_ms
        elif event.type in (EntryType.TARGET_ASSIGNMENT_COMPUTED, EntryType.RELEASED):
            delayed_until_ms = None  # a release may end the delay, and has no deadline
        if event.type is EntryType.SHUTDOWN_REQUESTED:
            shutdown = event
        elif event.to_state == ConsumerGroupState.EMPTY:
            shutdown = None
    if last is None or last.group_type != STREAMS:
        return None
    return StreamsNow(
        not_ready=None if not_ready is None else _about_topology(not_ready.reason),
        not_ready_since_ms=since_ms,
        shutdown_requested_by=None if shutdown is None else shutdown.member_id,
        shutdown_at_ms=0 if shutdown is None else shutdown.at_ms,
        delayed_until_ms=delayed_until_ms,
    )


def _about_topology(reason: str) -> str:
    """Return the clauses of a reason that are about the topology, without those about members."""
    clauses = reason.split("; ")
    return "; ".join(clause for clause in clauses if "topology" in clause) or reason


def streams_lines(streams: StreamsNow, now_ms: int, clock: Clock, names: Names) -> Lines:
    """Yield why no member has a task, and which member ends the application."""
    if streams.not_ready is not None:
        lasted = duration_text(max(now_ms - streams.not_ready_since_ms, 0))
        yield "Not ready", f"for {lasted}: {names.put_in(streams.not_ready)}"
    if streams.delayed_until_ms is not None and now_ms < streams.delayed_until_ms:
        yield (
            "Delayed",
            f"until {clock.time(streams.delayed_until_ms)}: the first target waits for more members",
        )
    if streams.shutdown_requested_by is not None:
        yield (
            "Shutdown",
            f"requested by {names.of(streams.shutdown_requested_by)} at {clock.time(streams.shutdown_at_ms)}",
        )
