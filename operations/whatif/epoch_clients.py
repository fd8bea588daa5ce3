"""The clients of a group of the consumer, share or streams protocol, found in its log.

A process keeps its member id until it leaves. If it is refused, it may try to join under another member id.
It sends heartbeats at the interval that the last answer required, reports its assignment, and joins again
after it was fenced.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    DescribeGroup,
    DescribeGroupConfigs,
    Heartbeat,
    JoinGroup,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.kafka.share_requests import (
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStateResult,
)
from kafka_why.contract.kafka.streams_responses import StreamsGroupDescribe
from operations.whatif.clients import (
    PAUSE_INTERVALS,
    RequestSorter,
    name_processes,
    record_partition_count,
)
from operations.whatif.epoch_requests import (
    FENCED,
    EpochResponse,
    assignment_in,
    flatten,
    has_report,
    has_updates,
    lasting_fields,
    partitions_of,
    report_fields,
)
from operations.whatif.facts import (
    ClientFleet,
    EpochHeartbeat,
    EpochProcess,
    EpochReactionKind,
    LogMoment,
    ObservedProcess,
    Reaction,
    Report,
    SentHeartbeat,
    SentRequest,
    ShareTaskPartition,
    TimeSpan,
)
from operations.whatif.run import GroupLog, Run, WhatIfError, open_loop
from state.protocol import Received


@dataclass
class _MemberObserver(ObservedProcess[SentHeartbeat, EpochReactionKind]):
    """An observer of a process of the consumer, share or streams protocol.

    `requests`, `known`, `updates`, `beats` and `pauses` are as in `EpochProcess`.
    """

    requests: dict[str, SentHeartbeat] = field(default_factory=dict)
    known: dict[str, tuple[int, Report]] = field(default_factory=dict)
    updates: list[SentHeartbeat] = field(default_factory=list)
    beats: dict[int, list[Reaction]] = field(default_factory=dict)
    pauses: list[TimeSpan] = field(default_factory=list)
    _awaits_answer: bool = False  # True if the last request is not answered
    # Of the last answer: the heartbeat interval, the epoch, and the assignment.
    interval_ms: int = 0
    _epoch: int = 0
    _assigned: Report = field(default_factory=dict)
    _lasting: dict[str, Any] = field(default_factory=dict)  # the fields in force (`lasting_fields`)

    @property
    def _due_kind(self) -> EpochReactionKind | None:
        """The kind of the reaction that is due, or None if none is due."""
        return None if self.due is None else self.due[0]

    def record_request(self, sent: SentHeartbeat) -> None:
        """Record a request of the process."""
        request = sent.request
        self.last_request = sent.moment
        is_fenced = self._due_kind is EpochReactionKind.FENCED
        knows_last_answer = not self._awaits_answer and not (is_fenced and request.member_epoch > 0)
        if not knows_last_answer:  # the answer has not reached the client, which repeats its request
            self.repeated += 1
            return
        self._awaits_answer = True
        if request.member_epoch < 0:
            self.left = sent
            self.record_wait_until(sent.moment.at_ms)
            return
        self.requests[sent.request_id] = sent
        self.known[sent.request_id] = self._epoch, self._assigned
        if request.member_epoch > 0 and has_updates(request, self._lasting):
            self.updates.append(sent)
        self._record_heartbeat_wait(sent, is_regular=self._record_reaction(sent))
        self._lasting |= lasting_fields(request)

    def _record_reaction(self, sent: SentHeartbeat) -> bool:
        """Record the request if it is a reaction or a join. Return True if it is a regular heartbeat."""
        request = sent.request
        if self.due is not None:
            kind, from_ms = self.due
            is_report = request.member_epoch > 0 and has_report(request)
            if kind not in _REPORTED or is_report:
                self._add_reaction(kind, from_ms, sent.moment, sent.request_id)
                self.due = None
                return False
        if request.member_epoch == 0 and sent is not self.first:
            self.rejoins.append(sent)
        return request.member_epoch > 0

    def _record_heartbeat_wait(self, sent: SentHeartbeat, *, is_regular: bool) -> None:
        """Record the end of the wait for the next regular heartbeat, which another request may end, too."""
        from_ms, self._heartbeat_wait_from_ms = self._heartbeat_wait_from_ms, None
        if from_ms is None:
            return
        at_ms = sent.moment.at_ms
        if at_ms - from_ms > PAUSE_INTERVALS * self.interval_ms:
            self.pauses.append(TimeSpan(from_ms, at_ms))
        if is_regular:
            heartbeat = Reaction(from_ms, sent.moment, sent.request_id)
        else:
            heartbeat = Reaction(from_ms, LogMoment(at_ms), request_id="")
        self.beats.setdefault(self.interval_ms, []).append(heartbeat)

    def observe_response(self, at_ms: int, response: AnyResponse) -> None:
        """Record the response to one of the process's requests."""
        self._awaits_answer = False
        if not isinstance(response, EpochResponse):  # to a commit
            return
        if response.error_code:
            self._heartbeat_wait_from_ms = None
            is_fenced = response.error_code in FENCED
            self._set_due(EpochReactionKind.FENCED if is_fenced else EpochReactionKind.ERROR, at_ms)
            if is_fenced:
                self._assigned = {}
        elif self.left is None:
            self.member_id = response.member_id or self.member_id
            self._epoch, self._heartbeat_wait_from_ms = response.member_epoch, at_ms
            self.interval_ms = response.heartbeat_interval_ms
            assignment = assignment_in(response)
            if assignment is not None:
                kind = reaction_to(self._assigned, assignment)
                self._assigned = assignment
                if kind is not None:
                    self._set_due(kind, at_ms)

    def is_refused(self) -> bool:
        """Return True if the last request was a request to join and was refused."""
        if self.left is not None or self._due_kind is not EpochReactionKind.ERROR:
            return False
        last_request = next(reversed(self.requests.values())).request
        return last_request.member_epoch == 0

    def _set_due(self, kind: EpochReactionKind, at_ms: int) -> None:
        """Make a reaction due, unless one of its kind is due already."""
        if self._due_kind is not kind:
            self._record_wait(at_ms)
            self.due = kind, at_ms

    def _record_wait(self, at_ms: int) -> None:
        """Record that the process has waited to react until this time without reacting."""
        if self.due is not None:
            self._add_reaction(*self.due, LogMoment(at_ms))

    def finish(self, until_ms: int) -> None:
        """End the observation: set `end`, and record what the process waits for then."""
        if self.left is not None:
            self.end = self.left.moment
        elif self._due_kind is not EpochReactionKind.ERROR:
            is_silent = until_ms - self.last_request.at_ms > PAUSE_INTERVALS * self.interval_ms
            if is_silent and not self._awaits_answer:
                self.end = self.last_request
            # One ms after the end, so that the simulated process does not react at the end.
            self.record_wait_until(until_ms + 1 if self.end is None else self.end.at_ms + 1)

    def record_wait_until(self, at_ms: int) -> None:
        """Record that the process has waited for its next action until this time, and still waits."""
        self._record_wait(at_ms)
        if self._heartbeat_wait_from_ms is not None:
            beat = Reaction(self._heartbeat_wait_from_ms, LogMoment(at_ms), "")
            self.beats.setdefault(self.interval_ms, []).append(beat)


# The reactions to a new assignment, in which the client reports that it has the assignment.
_REPORTED = (EpochReactionKind.REVOKED, EpochReactionKind.ASSIGNED)


def reaction_to(before: Report, given: Report) -> EpochReactionKind | None:
    """Return the kind of a client's reaction to a new assignment, or None if it does not react.

    It reacts if the assignment has changed, except in a share group, whose clients report no assignment.
    """
    held_before, held_now = flatten(before), flatten(given)
    if held_before == held_now or not report_fields(given):
        return None
    return EpochReactionKind.REVOKED if held_before - held_now else EpochReactionKind.ASSIGNED


# The assumed time of a reaction that no client of the group has in the log.
_DEFAULT_MS = {EpochReactionKind.FENCED: 10, EpochReactionKind.REVOKED: 10}
# The assumed time until the share coordinator has done a task, if the log has no result of a task.
_DEFAULT_TASK_MS = 100

# The history entries that begin a task of the share coordinator.
_TASK_BEGINS = (EntryType.SHARE_PARTITIONS_INITIALIZING, EntryType.SHARE_PARTITIONS_DELETING)

_ONLY_READ = (
    ConsumerGroupDescribe,
    DescribeGroup,
    DescribeGroupConfigs,
    DescribeShareGroupOffsets,
    OffsetFetch,
    ShareGroupDescribe,
    StreamsGroupDescribe,
)


class _EpochSorter(RequestSorter[_MemberObserver]):
    """A sorter of the requests of a group of the consumer, share or streams protocol."""

    def dispatch(self, sent: SentRequest) -> _MemberObserver | None:
        request = sent.request
        match request:
            case JoinGroup() | SyncGroup() | Heartbeat():
                raise WhatIfError(
                    f"group {request.group_id} had members of the classic protocol, too; what-if can "
                    "simulate groups of one protocol only, because it has no model of a conversion"
                )
            case OffsetCommit() | TxnOffsetCommit() if request.member_id in self.by_id:
                self.by_id[request.member_id].commits.append(sent)
            case _ if isinstance(request, EpochHeartbeat):
                return self._dispatch_heartbeat(SentHeartbeat(sent.moment, sent.request_id, request))
            case _ if isinstance(request, _ONLY_READ):
                self.ignored["that only read"] += 1
            case _:
                self.other_requests.append(sent)
        return None

    def _dispatch_heartbeat(self, sent: SentHeartbeat) -> _MemberObserver | None:
        """Let the heartbeat's process record it, and return the process. If no running process has its member
        id, it becomes one of `other_requests`, and None is returned.
        """
        request = sent.request
        if type(request) is not type(self.observers[0].first.request if self.observers else request):
            raise WhatIfError(f"group {request.group_id} had members of two protocols")
        observer = self.by_id.get(request.member_id)
        if request.member_epoch == 0 and (observer is None or observer.left is not None):
            observer = self._process_of_join(sent)
            if request.member_id:
                self.by_id[request.member_id] = observer
        if observer is None or observer.left is not None:
            self.other_requests.append(sent)
            return None
        observer.record_request(sent)
        return observer

    def _process_of_join(self, sent: SentHeartbeat) -> _MemberObserver:
        """Return the process that joins under an unknown member id: the first refused process of the same
        client, or else a new process. A client that is started again after a refusal has a new id.
        """
        request = sent.request
        identity = request.client_id, request.client_host, getattr(request, "instance_id", None)
        for observer in self.observers:
            if observer.is_refused() and observer.identity == identity:
                self.by_id.pop(observer.member_id, None)
                observer.member_id = request.member_id
                return observer
        observer = _MemberObserver(sent, *identity, request.member_id)
        self.observers.append(observer)
        return observer


def find_epoch_clients(log: GroupLog) -> tuple[ClientFleet, Run]:
    """Return the clients of a log, and the log's run. Raises WhatIfError if the group cannot be simulated."""
    run = open_loop(log)
    sorter = _EpochSorter()
    sorter.apply(run)
    observers = sorter.observers
    for observer in observers:
        observer.finish(log.until_ms)
    name_processes(observers)
    share_tasks, task_ms = _share_tasks(run, sorter.other_requests)
    usual_ms, late_ms = {**_DEFAULT_MS, **_usual_ms(observers)}, _late_ms(observers, 0)
    fleet = ClientFleet(
        group_id=log.group_id,
        processes=[_build_process(observer, usual_ms, late_ms) for observer in observers],
        other_requests=sorter.other_requests,
        partition_counts=_partition_counts(run),
        ignored=sorter.ignored_requests(),
        share_tasks=share_tasks,
        share_task_ms=task_ms,
    )
    return fleet, sorter.sent_run(run)


def _build_process(
    observer: _MemberObserver, usual_ms: Mapping[EpochReactionKind, int], late_ms: int
) -> EpochProcess:
    """Return the observed process. `usual_ms` and `late_ms` are the group's, for missing times."""
    return EpochProcess(
        key=observer.key,
        client=observer.client,
        starts=observer.first,
        ends=observer.end,
        leave=observer.left,
        pauses=observer.pauses,
        commits=observer.commits,
        requests=observer.requests,
        known=observer.known,
        rejoins=observer.rejoins,
        updates=observer.updates,
        reactions=observer.reactions,
        usual_ms={**usual_ms, **_usual_ms([observer])},
        beats=observer.beats,
        late_ms=_late_ms([observer], late_ms),
    )


def _usual_ms(observers: Sequence[_MemberObserver]) -> dict[EpochReactionKind, int]:
    """Return the median time of each kind of reaction of these processes."""
    durations_ms: dict[EpochReactionKind, list[int]] = {}
    for observer in observers:
        for kind, reactions in observer.reactions.items():
            durations_ms.setdefault(kind, []).extend(
                r.to.at_ms - r.from_ms for r in reactions if r.request_id
            )
    return {kind: median_low(times_ms) for kind, times_ms in durations_ms.items() if times_ms}


def _late_ms(observers: Sequence[_MemberObserver], default_ms: int) -> int:
    """Return the median delay of regular heartbeats after their interval, without pauses, at least 0."""
    delays_ms = [
        beat.to.at_ms - beat.from_ms - interval_ms
        for observer in observers
        for interval_ms, beats in observer.beats.items()
        for beat in beats
        if beat.request_id and beat.to.at_ms - beat.from_ms <= PAUSE_INTERVALS * interval_ms
    ]
    return max(0, median_low(delays_ms)) if delays_ms else default_ms


def _partition_counts(run: Run) -> dict[str, list[tuple[int, int]]]:
    """Return the number of partitions of each topic id, or of tasks of each subtopology.

    The numbers are from the metadata of topics in heartbeats, and from the members' assignments.
    """
    counts: dict[str, list[tuple[int, int]]] = {}
    for step in run.steps:
        request = step.event.request if isinstance(step.event, Received) else None
        if isinstance(request, ConsumerGroupHeartbeat | ShareGroupHeartbeat):
            for image in (request.topics or {}).values():
                if image is not None:
                    record_partition_count(counts, str(image.id), image.partitions, step.at_ms)
        for reply in step.effects.replies:
            for topic, number in partitions_of(assignment_in(reply.response) or {}):
                record_partition_count(counts, topic, number + 1, step.at_ms)
    return counts


def _share_tasks(run: Run, other_requests: Iterable[SentRequest]) -> tuple[set[ShareTaskPartition], int]:
    """Return the partitions of the share coordinator's tasks, and the median time until a task's result."""
    begins = [entry for entry in run.history() if entry.type in _TASK_BEGINS]
    began_ms = {entry.cause: entry.at_ms for entry in begins}
    # The id of a task is <cause>@<epoch>.
    durations_ms = [
        sent.moment.at_ms - began_ms[cause]
        for sent in other_requests
        if isinstance(sent.request, ShareStateResult)
        and (cause := sent.request.task.partition("@")[0]) in began_ms
    ]
    partitions = {
        ShareTaskPartition(entry.cause, topic, number)
        for entry in begins
        for topic, numbers in (entry.partitions or {}).items()
        for number in numbers
    }
    return partitions, median_low(durations_ms) if durations_ms else _DEFAULT_TASK_MS
