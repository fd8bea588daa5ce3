"""The tasks of a streams group: where a moved task found its state, and why members have no tasks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from kafka_why.contract.kafka.history import (
    NOT_READY,
    STREAMS,
    TASK_STATES_MAX,
    ConsumerGroupState,
    EntryType,
    HistoryEntry,
    TaskState,
)
from kafka_why.contract.messages import ANONYMOUS
from kafka_why.contract.protocols.streams_protocol import ACTIVE, STANDBY, role_and_task
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition, by_topic
from kafka_why.why.model import Moves, NotCreated, Rebalance, StreamsNow, TaskMoves
from kafka_why.why.moves import Holdings, Partitions, compare
from kafka_why.wording import Clock, Lines, Names, count, duration_text, shortened

_NO_TASKS = "KSA6"
"""The rule (row of docs/rules.md) of a target assignment without tasks, because the topology is not ready."""


def active_only(holdings: Holdings) -> Holdings:
    """Return the active tasks of each member, with subtopologies as topics."""
    return {member_id: frozenset(_in_role(held, ACTIVE)) for member_id, held in holdings.items()}


def compare_tasks(before: Holdings, after: Holdings) -> Moves:
    """Compare two assignments of a streams group.

    The totals count active tasks. The members' changes include tasks in all roles. `needless` is None,
    because no minimum is defined.
    """
    members = compare(before, after).members
    return replace(compare(active_only(before), active_only(after)), members=members, needless=None)


def task_moves(
    before: Holdings,
    after: Holdings,
    processes: Mapping[MemberId, str],
    states: dict[str, TaskState] | None = None,
) -> TaskMoves:
    """Compare the tasks before and after a rebalance, given as the partitions of each member.

    `processes` has the process of each member. A member without one counts as a process by itself. `states`
    is the result of `states_in`.
    """
    tasks_before: dict[str, set[TopicPartition]] = {}  # in any role, by process
    for member_id, held in before.items():
        process_tasks = tasks_before.setdefault(processes.get(member_id, member_id), set())
        process_tasks.update(task for _, task in map(role_and_task, held))
    owner_before = {task: member_id for member_id, held in before.items() for task in _in_role(held, ACTIVE)}
    promoted, without_copy, standby, new_standby = set(), set(), 0, 0
    for member_id, held in after.items():
        process_tasks = tasks_before.get(processes.get(member_id, member_id), set())
        moved = {task for task in _in_role(held, ACTIVE) if owner_before.get(task, member_id) != member_id}
        promoted |= moved & process_tasks
        without_copy |= moved - process_tasks
        standby_tasks = set(_in_role(held, STANDBY))
        standby += len(standby_tasks)
        new_standby += len(standby_tasks - process_tasks)
    return TaskMoves(
        promoted=by_topic(promoted),
        without_copy=by_topic(without_copy),
        standby=standby,
        new_standby=new_standby,
        states=states,
    )


def states_in(entries: Iterable[HistoryEntry]) -> dict[str, TaskState] | None:
    """Return the state of each task with a new owner in this owner's process, by the latest entry.

    The result is None if no entry about a target assignment has `task_states`.
    """
    of_targets = [event.task_states for event in entries if event.task_states is not None]
    return dict(chain.from_iterable(states.items() for states in of_targets)) if of_targets else None


def failures_in(entries: Iterable[HistoryEntry], since_ms: int) -> list[NotCreated]:
    """Return the failures to create internal topics, with their times since `since_ms`."""
    return [
        NotCreated(
            after_ms=event.at_ms - since_ms,
            member_id=event.member_id or "",
            principal=event.principal,
            topics=event.topics or [],
            reason=event.reason,
        )
        for event in entries
        if event.type is EntryType.INTERNAL_TOPICS_NOT_CREATED
    ]


def _in_role(held: Partitions, role: str) -> Iterator[TopicPartition]:
    """Return the tasks in this role, with subtopologies as topics."""
    return (task for task_role, task in map(role_and_task, held) if task_role == role)


def tasks_of(partitions: Mapping[str, list[int]] | None) -> dict[str, list[int]]:
    """Return tasks by subtopology (`0`), from tasks by role and subtopology (`standby 0`)."""
    return {topic.partition(" ")[2]: numbers for topic, numbers in (partitions or {}).items()}


def task_lines(r: Rebalance, names: Names) -> Lines:
    """Yield why internal topics were not created, where the moved tasks found their state, and which standby
    tasks lack copies.
    """
    for failed in r.not_created:
        yield "topics", _not_created_text(failed, names)
    if r.tasks is not None:
        yield from _state_lines(r.tasks)
    # Of the last target assignment.
    missing = next(
        (new.missing_standbys for new in reversed(r.epochs) if new.target_after_ms is not None), {}
    )
    if missing:
        yield (
            "missing",
            f"copies of standby tasks {_tasks_text(missing)}, because there are too few processes",
        )


def _not_created_text(failed: NotCreated, names: Names) -> str:
    """Return a text such as `not created after 1.0 s for worker-1, User:app: the reason`."""
    principal = "" if failed.principal in (None, ANONYMOUS) else f", {failed.principal}"
    after = duration_text(failed.after_ms)
    return f"not created after {after} for {names.of(failed.member_id)}{principal}: {failed.reason}"


def _state_lines(tasks: TaskMoves) -> Lines:
    """Yield where the moved active tasks found their state, and how many standby tasks there are."""
    texts = _unknown_states(tasks) if tasks.states is None else _known_states(tasks, tasks.states)
    if text := "; ".join(texts):
        yield "state", text
    if tasks.standby:
        new = f", {tasks.new_standby} in a process that did not have the task" if tasks.new_standby else ""
        yield "standbys", f"{count(tasks.standby, 'task')}{new}"


def _unknown_states(tasks: TaskMoves) -> Iterator[str]:
    """Yield clauses about moved tasks if the history lacks the offsets of their states."""
    if tasks.promoted:
        yield f"already in the new owner's process for {_tasks_text(tasks.promoted)}"
    if tasks.without_copy:
        yield f"no copy there of {_tasks_text(tasks.without_copy)}, which restore it if they have any"


def _known_states(tasks: TaskMoves, states: Mapping[str, TaskState]) -> Iterator[str]:
    """Yield clauses about moved tasks, by how much of their state the new owner's process had."""
    moved = sorted([*_task_names(tasks.promoted), *_task_names(tasks.without_copy)])
    with_state = [(task, states[task]) for task in moved if task in states]
    # The process had the task, or only a copy of its state from earlier, or no copy.
    in_use = [_with_lag(task, state) for task, state in with_state if state.role]
    left_over = [
        _with_lag(task, state) for task, state in with_state if not state.role and state.offset is not None
    ]
    without_copy = [task for task, state in with_state if not state.role and state.offset is None]
    without_state = [task for task in moved if task not in states]
    if in_use:
        yield f"already in the new owner's process for {shortened(in_use)}"
    if left_over:
        yield f"an earlier copy there of {shortened(left_over)}"
    if without_copy:
        yield f"no copy there of {shortened(without_copy)}, which restore it from the beginning"
    if without_state:
        is_complete = len(states) < TASK_STATES_MAX  # else the history omits the states of more tasks
        yield f"{'none to restore' if is_complete else 'unknown'} for {shortened(without_state)}"


def _with_lag(task: str, state: TaskState) -> str:
    """Return a text such as `0_3 (standby, 40 records behind as of 12.0 s before)`."""
    details = [state.role] if state.role else []
    if state.offset is not None and state.offset >= 0 and state.end_offset is not None:
        lag = count(max(state.end_offset - state.offset, 0), "record")
        details.append(f"{lag} behind as of {duration_text(state.reported_before_ms or 0)} before")
    return f"{task} ({', '.join(details)})" if details else task


def _tasks_text(tasks: Mapping[str, Iterable[int]]) -> str:
    return shortened(_task_names(tasks))


def _task_names(tasks: Mapping[str, Iterable[int]]) -> list[str]:
    """Return the tasks under Kafka's names, such as `0_2`."""
    return [f"{subtopology}_{number}" for subtopology, numbers in tasks.items() for number in numbers]


def streams_now(entries: Sequence[HistoryEntry]) -> StreamsNow | None:
    """Return the state of a streams group after the entries of its life (at least one).

    Return None if the group is then of another type.
    """
    if entries[-1].group_type != STREAMS:
        return None
    not_ready: HistoryEntry | None = None  # the last entry with a reason why the topology is not ready
    since_ms = 0  # since when it is not ready
    shutdown: HistoryEntry | None = None
    delayed_until_ms: int | None = None
    for event in (entry for entry in entries if entry.group_type == STREAMS):
        if event.to_state != NOT_READY:
            not_ready = None
        elif event.type is EntryType.GROUP_EPOCH_BUMPED or event.rule == _NO_TASKS:
            since_ms = event.at_ms if not_ready is None else since_ms
            not_ready = event
        if event.type in (EntryType.ASSIGNMENT_DELAYED, EntryType.TAKEN_OVER):
            delayed_until_ms = event.deadline_ms
        elif event.type in (EntryType.TARGET_ASSIGNMENT_COMPUTED, EntryType.RELEASED):
            delayed_until_ms = None  # a release from quarantine may end the delay, and has no deadline
        if event.type is EntryType.SHUTDOWN_REQUESTED:
            shutdown = event
        elif event.to_state == ConsumerGroupState.EMPTY:
            shutdown = None
    failed = failures_in((event for event in entries if event.at_ms >= since_ms), since_ms)
    return StreamsNow(
        not_ready=None if not_ready is None else _about_topology(not_ready.reason),
        not_ready_since_ms=since_ms,
        shutdown_requested_by=None if shutdown is None else shutdown.member_id,
        shutdown_at_ms=0 if shutdown is None else shutdown.at_ms,
        delayed_until_ms=delayed_until_ms,
        not_created=None if not_ready is None or not failed else failed[-1],
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
    if streams.not_created is not None:
        yield "", _not_created_text(streams.not_created, names)
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
