"""The figures of a run: rebalances, the times in which members and partitions stood still, and moves.

*A client of the classic protocol stands still* while one of its processes runs without an assignment. By its
JoinGroup, a member of an eager assignor gives up its partitions until the answer to its SyncGroup. Under
`cooperative-sticky` a member that joins again does not stand still. A client of another protocol stands still
while it runs and has no partition (in a streams group, no active task).

*A partition stands still* while processes of the group run, and none of them consumes the partition. Either
no process has it, or its process is dead or pauses. This includes the time until a dead member's session
ends, which `why` does not know. A partition that a member has to give up is no longer consumed. A time in
which all of several processes are silent is no pause, because clients without a coordinator continue to
consume.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import JoinGroup, LeaveGroup
from kafka_why.contract.kafka.responses import AnyResponse, JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.why.report import CauseCount, Report, report
from operations.whatif.epoch_requests import (
    FENCED,
    EpochResponse,
    assignment_in,
    fatal_requests,
    partitions_of,
    stateful_subtopologies,
)
from operations.whatif.facts import ClientFleet, ClientProcess, EpochHeartbeat
from operations.whatif.observer import Partitions, is_cooperative, read_partitions
from operations.whatif.run import Run
from operations.whatif.windows import Window, length, merged, overlaps, without
from state.protocol import Received

_NEW_GENERATION: Final = (EntryType.COMPLETING_REBALANCE, EntryType.GROUP_EPOCH_BUMPED)


class RunFigures(Struct, frozen=True, kw_only=True):
    """The figures of a run. In a streams group, partitions are active tasks."""

    name: str  # of the experiment
    rebalances: int = 0
    causes: list[CauseCount] = []  # of the rebalances
    generations: int = 0  # number of new generations, or of new group epochs
    not_stable_ms: int = 0  # time in which the group was not Stable
    stood_still_ms: int = 0  # sum of `by_client`
    by_client: dict[str, int] = {}  # time in ms that each client stood still
    partitions: int = 0  # number of all known partitions of the group's topics
    partition_ms: int = 0  # sum of the times that the partitions stood still
    longest_ms: int = 0  # longest time that one partition stood still at a stretch
    moved: int = 0  # this field and the next are as in `kafka_why.why.moves`
    needless: int = 0  # 0 in a group with epochs
    without_copy: int = 0  # stateful tasks that moved to a process without a copy of their state
    refused: list[str]  # processes that never joined, because the coordinator refused them


@dataclass(frozen=True)
class MeasuredRun:
    """A run with its figures, its report, and the process of each member id.

    `report` is None if no client ever joined.
    """

    run: Run
    outcome: RunFigures
    report: Report | None
    processes: Mapping[str, str]


_HeldWindow = tuple[Partitions, Window]
"""The partitions that a process held in a window of time, perhaps none."""


def measure(name: str, fleet: ClientFleet, run: Run) -> MeasuredRun:
    """Return the figures of a run of this fleet, recorded or simulated."""
    history = run.history()
    if not history:
        refused = [process.key for process in fleet.processes]
        outcome = RunFigures(name=name, refused=refused)
        return MeasuredRun(run, outcome, report=None, processes={})  # no client joined
    why_report = report(run.group_id, history, run.until_ms)
    held_windows = _held_windows(fleet, run)
    running = {process.key: _running_window(process, run.until_ms) for process in fleet.processes}
    by_client = dict.fromkeys((process.client for process in fleet.processes), 0)
    for process in fleet.processes:
        windows_with_assignment = [window for _, window in held_windows[process.key]]
        by_client[process.client] += length(without([running[process.key]], windows_with_assignment))
    idle = _idle_windows(fleet, held_windows, running, own_pauses(fleet, run.until_ms))
    stateful = {id_ for process in fleet.processes for id_ in stateful_subtopologies(process.starts.request)}
    summary = why_report.summary
    outcome = RunFigures(
        name=name,
        rebalances=summary.rebalances,
        causes=summary.causes,
        generations=sum(entry.type in _NEW_GENERATION for entry in history),
        not_stable_ms=summary.not_stable_ms,
        stood_still_ms=sum(by_client.values()),
        by_client=by_client,
        partitions=len(idle),
        partition_ms=sum(length(windows) for windows in idle),
        longest_ms=max((to - since for windows in idle for since, to in windows), default=0),
        moved=summary.moved,
        needless=summary.needless,
        without_copy=sum(
            len(rebalance.tasks.without_copy.get(id_, ()))
            for rebalance in why_report.rebalances
            if rebalance.tasks
            for id_ in stateful
        ),
        refused=_refused_processes(fleet, run),
    )
    processes = {answer.member_id: key for key, answer in _join_answers(run) if answer.member_id}
    return MeasuredRun(run, outcome, why_report, processes)


def silences(fleet: ClientFleet, until_ms: int) -> list[Window]:
    """Return the times in which several processes run, and none sends heartbeats. Then the coordinator, or
    the network to it, is unavailable. The stream threads of one instance count as one process here.
    """
    running: dict[str, list[Window]] = {}
    with_heartbeats: list[Window] = []  # of any process
    for process in fleet.processes:
        window = _running_window(process, until_ms)
        instance = getattr(process.starts.request, "process_id", None) or process.key
        running.setdefault(instance, []).append(window)
        with_heartbeats += without([window], _pause_windows(process, until_ms))
    several_run = overlaps(chain.from_iterable(map(merged, running.values())))
    return without(several_run, with_heartbeats)


def own_pauses(fleet: ClientFleet, until_ms: int) -> dict[str, list[Window]]:
    """Return the pauses of each process. Omit pauses in which all processes are silent for half the time or
    more.
    """
    silent = silences(fleet, until_ms)
    return {
        process.key: [
            pause
            for pause in _pause_windows(process, until_ms)
            if 2 * length(without([pause], silent)) > length([pause])
        ]
        for process in fleet.processes
    }


def _pause_windows(process: ClientProcess, until_ms: int) -> list[Window]:
    """Return the process's pauses. One that does not end is cut at the end of the process."""
    ends_ms = _running_window(process, until_ms)[1]
    return [(span.from_ms, ends_ms if span.to_ms is None else span.to_ms) for span in process.pauses]


def _running_window(process: ClientProcess, until_ms: int) -> Window:
    """Return the time in which the process runs, up to `until_ms` if it does not end."""
    return process.starts.moment.at_ms, until_ms if process.ends is None else process.ends.at_ms


def _held_windows(fleet: ClientFleet, run: Run) -> dict[str, list[_HeldWindow]]:
    """Return the partitions that each process held, each with the window of time."""
    fatal = fatal_requests(run)
    ends = {process.key: _running_window(process, run.until_ms)[1] for process in fleet.processes}
    held_now: dict[str, tuple[Partitions, int]] = {}  # by process, its partitions, and since when (in ms)
    windows: dict[str, list[_HeldWindow]] = {key: [] for key in ends}

    def hold(key: str, at_ms: int, partitions: Partitions | None) -> None:
        """End the process's window, and begin one with these partitions, unless they are None."""
        held_before, since_ms = held_now.pop(key, (frozenset(), at_ms))
        to_ms = min(at_ms, ends[key])
        if since_ms < to_ms:
            windows[key].append((held_before, (since_ms, to_ms)))
        if partitions is not None:
            held_now[key] = partitions, at_ms

    for step in run.steps:
        if isinstance(step.event, Received):
            key = run.senders.get(step.event.request_id)
            if key is not None and _gives_up_partitions(step.event.request):
                hold(key, step.at_ms, partitions=None)
        for reply in step.effects.replies:
            key = run.senders.get(reply.response.request)
            is_fatal = reply.response.request in fatal
            if key is not None and (is_fatal or _changes_partitions(reply.response)):
                hold(key, step.at_ms, _partitions_given(reply.response))
    for key in list(held_now):
        hold(key, run.until_ms, partitions=None)
    return windows


def _changes_partitions(response: AnyResponse) -> bool:
    """Return True if a process has other partitions, or none, after this answer."""
    if isinstance(response, EpochResponse) and response.error_code in FENCED:
        return True
    return response.error_code is ErrorCode.NONE and (
        isinstance(response, SyncGroupResponse) or assignment_in(response) is not None
    )


def _partitions_given(response: AnyResponse) -> Partitions | None:
    """Return the partitions that an answer gives to a process, or None if the process stands still. A member
    of the classic protocol with an empty assignment does not stand still.
    """
    if isinstance(response, SyncGroupResponse):
        return read_partitions(response.assignment)
    return partitions_of(assignment_in(response) or {}) or None


def _gives_up_partitions(request: object) -> bool:
    """Return True if a process that sends this request gives up its partitions."""
    if isinstance(request, JoinGroup):
        return not (is_cooperative(request.protocols) and request.member_id)
    return isinstance(request, LeaveGroup) or (
        isinstance(request, EpochHeartbeat) and request.member_epoch <= 0
    )


def _idle_windows(
    fleet: ClientFleet,
    held: Mapping[str, Sequence[_HeldWindow]],
    running: Mapping[str, Window],
    pauses: Mapping[str, Sequence[Window]],
) -> list[list[Window]]:
    """Return for each partition the times in which it stood still."""
    # Begin with all known partitions, because some may never be consumed. The last known number of a topic's
    # partitions is the greatest.
    consumed: dict[TopicPartition, list[Window]] = {
        TopicPartition(topic, number): []
        for topic, counts in fleet.partition_counts.items()
        for number in range(counts[-1][1])
    }
    for process in fleet.processes:
        for partitions, held_window in held[process.key]:
            for window in without([held_window], pauses[process.key]):
                for partition in partitions:
                    consumed.setdefault(partition, []).append(window)
    group_running = merged(running.values())
    return [without(group_running, windows) for windows in consumed.values()]


def _join_answers(run: Run) -> Iterator[tuple[str, JoinGroupResponse | EpochResponse]]:
    """Yield the answers to requests that may join, each with the process that sent the request."""
    for step in run.steps:
        for reply in step.effects.replies:
            key = run.senders.get(reply.response.request)
            if key is not None and isinstance(reply.response, JoinGroupResponse | EpochResponse):
                yield key, reply.response


def _refused_processes(fleet: ClientFleet, run: Run) -> list[str]:
    """Return the processes that never joined and whose last answer was a refusal."""
    last_error: dict[str, ErrorCode] = {}  # by process; NONE once it has joined
    for key, answer in _join_answers(run):
        if last_error.get(key) is not ErrorCode.NONE:
            last_error[key] = answer.error_code
    not_refused = (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED, *FENCED)
    return [p.key for p in fleet.processes if last_error.get(p.key, ErrorCode.NONE) not in not_refused]
