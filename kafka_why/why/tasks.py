"""The tasks of a streams group: where a moved task found its state, and why members have no tasks."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from kafka_why.contract.kafka.history import NOT_READY, STREAMS, ConsumerGroupState, EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition, by_topic
from kafka_why.streams_tasks import ACTIVE, STANDBY, role_and_task
from kafka_why.why.model import Moves, Rebalance, StreamsNow, TaskMoves
from kafka_why.why.moves import Holdings, Partitions, compare
from kafka_why.wording import Clock, Lines, Names, count, duration_text, shortened

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
    return (task for has, task in map(role_and_task, held) if has == role)


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
        if event.type is EntryType.ASSIGNMENT_DELAYED:
            delayed_until_ms = event.deadline_ms
        elif event.type is EntryType.TARGET_ASSIGNMENT_COMPUTED:
            delayed_until_ms = None
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
