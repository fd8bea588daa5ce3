"""The clients of a group of the consumer, share or streams protocol, found in its log.

A process is a member id until it leaves. If it is refused, it may try to join again under another member id.
It sends heartbeats at the interval that the last answer required, reports what it was assigned, and joins
again after it was fenced.
"""

from collections import Counter
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
from operations.whatif.clients import PAUSE_INTERVALS, ProcessName, RequestSorter, grow, names_of
from operations.whatif.epoch_requests import (
    FENCED,
    EpochResponse,
    assigned,
    flat,
    has_news,
    lasting_fields,
    partitions_of,
    report_fields,
    reports,
)
from operations.whatif.facts import (
    ClientFleet,
    EpochHeartbeat,
    EpochProcess,
    EpochReactionKind,
    LogMoment,
    Reaction,
    Report,
    SentHeartbeat,
    SentRequest,
    TimeSpan,
)
from operations.whatif.observer import NEVER
from operations.whatif.run import GroupLog, Run, WhatIfError, open_loop
from state.protocol import Received


@dataclass
class _MemberObserver:
    """An observer of one process, which takes its requests and answers in order."""

    first: SentHeartbeat
    client_id: str
    client_host: str
    instance_id: str | None
    member_id: str
    requests: dict[str, SentHeartbeat] = field(default_factory=dict)
    known: dict[str, tuple[int, Report]] = field(default_factory=dict)
    updates: list[SentHeartbeat] = field(default_factory=list)
    commits: list[SentRequest] = field(default_factory=list)
    reactions: dict[EpochReactionKind, list[Reaction]] = field(default_factory=dict)
    beats: dict[int, list[Reaction]] = field(default_factory=dict)
    pauses: list[TimeSpan] = field(default_factory=list)
    left: SentHeartbeat | None = None
    last_sign: LogMoment = NEVER
    repeated: int = 0
    interval_ms: int = 0  # of the last answer
    due: tuple[EpochReactionKind, int] | None = None
    _waits: bool = False  # True if the last request is not answered
    _epoch: int = 0
    _beats_from_ms: int | None = None
    _assigned: Report = field(default_factory=dict)
    _lasting: dict[str, Any] = field(default_factory=dict)

    def sent(self, sent: SentHeartbeat) -> None:
        """Record a request of the process."""
        request = sent.request
        self.last_sign = sent.moment
        is_unaware = self.due is not None and self.due[0] is EpochReactionKind.FENCED
        if self._waits or (is_unaware and request.member_epoch > 0):
            self.repeated += 1  # the answer has not reached the client
            return
        self._waits = True
        if request.member_epoch < 0:
            self.left = sent
            self.waited_until(sent.moment.at_ms)
            return
        self.requests[sent.request_id] = sent
        self.known[sent.request_id] = self._epoch, self._assigned
        is_beat = self._has_reacted(sent)
        self._beat(sent, is_regular=is_beat)
        self._lasting |= lasting_fields(request)

    def _has_reacted(self, sent: SentHeartbeat) -> bool:
        """Record the reaction or update that the request is, or both. Return True if it is neither."""
        request = sent.request
        is_report = request.member_epoch > 0 and reports(request)
        is_update = request.member_epoch == 0 or has_news(request, self._lasting)
        if self.due is not None and (self.due[0] not in _REPORTED or is_report):
            kind, from_ms = self.due
            self.reactions.setdefault(kind, []).append(Reaction(from_ms, sent.moment, sent.request_id))
            self.due = None
            if is_report and is_update:
                self.updates.append(sent)
            return False
        if is_update and sent is not self.first:
            self.updates.append(sent)
        return not is_update

    def _beat(self, sent: SentHeartbeat, *, is_regular: bool) -> None:
        """Record the end of the wait for the next regular heartbeat."""
        from_ms, self._beats_from_ms = self._beats_from_ms, None
        if from_ms is None:
            return
        at_ms = sent.moment.at_ms
        if at_ms - from_ms > PAUSE_INTERVALS * self.interval_ms:
            self.pauses.append(TimeSpan(from_ms, at_ms))
        beat = (
            Reaction(from_ms, sent.moment, sent.request_id)
            if is_regular
            else Reaction(from_ms, LogMoment(at_ms), "")
        )
        self.beats.setdefault(self.interval_ms, []).append(beat)

    def observe_response(self, at_ms: int, response: AnyResponse) -> None:
        """Record the response to one of the process's requests."""
        self._waits = False
        if not isinstance(response, EpochResponse):  # to a commit
            return
        if response.error_code:
            self._beats_from_ms = None
            is_fenced = response.error_code in FENCED
            self._set_due(EpochReactionKind.FENCED if is_fenced else EpochReactionKind.ERROR, at_ms)
            if is_fenced:
                self._assigned = {}
        elif self.left is None:
            self.member_id = response.member_id or self.member_id
            self._epoch, self._beats_from_ms = response.member_epoch, at_ms
            self.interval_ms = response.heartbeat_interval_ms
            given = assigned(response)
            if given is not None:
                kind = reaction_to(self._assigned, given)
                self._assigned = given
                if kind is not None:
                    self._set_due(kind, at_ms)

    def is_refused(self) -> bool:
        """Return True if the last request was one to join, and was refused."""
        if self.left is not None or self.due is None or self.due[0] is not EpochReactionKind.ERROR:
            return False
        return next(reversed(self.requests.values())).request.member_epoch == 0

    def _set_due(self, kind: EpochReactionKind, at_ms: int) -> None:
        if self.due is None or self.due[0] is not kind:
            self._abandon_due(at_ms)
            self.due = kind, at_ms

    def _abandon_due(self, at_ms: int) -> None:
        """Record that the process has waited to react until this time, and does not react any more."""
        if self.due is not None:
            kind, from_ms = self.due
            self.reactions.setdefault(kind, []).append(Reaction(from_ms, LogMoment(at_ms), ""))

    def ends(self, until_ms: int) -> LogMoment | None:
        """Return the moment of the process's last request, or None if it runs at the end of the log, or was
        refused for good. Nothing is recorded after this.
        """
        if self.left is not None:
            return self.left.moment
        if self.due is not None and self.due[0] is EpochReactionKind.ERROR:
            return None
        is_silent = until_ms - self.last_sign.at_ms > PAUSE_INTERVALS * self.interval_ms
        end = self.last_sign if is_silent and not self._waits else None
        self.waited_until(until_ms + 1 if end is None else end.at_ms + 1)
        return end

    def waited_until(self, at_ms: int) -> None:
        """Record that the process has waited for its next action until this time, and still waits."""
        self._abandon_due(at_ms)
        if self._beats_from_ms is not None:
            beat = Reaction(self._beats_from_ms, LogMoment(at_ms), "")
            self.beats.setdefault(self.interval_ms, []).append(beat)


_REPORTED = (EpochReactionKind.REVOKED, EpochReactionKind.ASSIGNED)


def reaction_to(before: Report, given: Report) -> EpochReactionKind | None:
    """Return the kind of a client's reaction to a new assignment, or None if it does not react."""
    had, has = flat(before), flat(given)
    if had == has or not report_fields(given):
        return None
    return EpochReactionKind.REVOKED if had - has else EpochReactionKind.ASSIGNED


# The assumed time of a reaction that no client of the group has in the log.
_DEFAULT_MS = {EpochReactionKind.FENCED: 10, EpochReactionKind.REVOKED: 10}
_TASK_MS = 100

_TASKS = (EntryType.SHARE_PARTITIONS_INITIALIZING, EntryType.SHARE_PARTITIONS_DELETING)

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

    def sender_of(self, sent: SentRequest) -> _MemberObserver | None:
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
                return self._process(SentHeartbeat(sent.moment, sent.request_id, request))
            case _ if isinstance(request, _ONLY_READ):
                self.ignored["that only read"] += 1
            case _:
                self.outside.append(sent)
        return None

    def _process(self, sent: SentHeartbeat) -> _MemberObserver | None:
        request = sent.request
        if type(request) is not type(self.observers[0].first.request if self.observers else request):
            raise WhatIfError(f"group {request.group_id} had members of two protocols")
        observer = self.by_id.get(request.member_id)
        if request.member_epoch == 0 and (observer is None or observer.left is not None):
            observer = self._process_of_join(sent)
            if request.member_id:
                self.by_id[request.member_id] = observer
        if observer is None or observer.left is not None:
            self.outside.append(sent)
            return None
        observer.sent(sent)
        return observer

    def _process_of_join(self, sent: SentHeartbeat) -> _MemberObserver:
        """Return the process that joins under an unknown member id: the first refused one of the same client,
        which was started again, or else a new one.
        """
        request = sent.request
        identity = request.client_id, request.client_host, getattr(request, "instance_id", None)
        for observer in self.observers:
            if observer.is_refused() and identity == (
                observer.client_id,
                observer.client_host,
                observer.instance_id,
            ):
                self.by_id.pop(observer.member_id, None)
                observer.member_id = request.member_id
                return observer
        observer = _MemberObserver(sent, *identity, request.member_id)
        self.observers.append(observer)
        return observer


def derive_epochs(log: GroupLog) -> tuple[ClientFleet, Run]:
    """Return the clients of a log, and what happened. Raises WhatIfError if the group cannot be simulated."""
    run = open_loop(log)
    found = _EpochSorter()
    found.apply(run)
    observers = found.observers
    ends = [observer.ends(log.until_ms) for observer in observers]
    names = names_of(observers, ends)
    keys = {id(observer): name.key for observer, name in zip(observers, names, strict=True)}
    tasks_ms, task_ms = _share_tasks(run, found.outside)
    usual_ms, late_ms = {**_DEFAULT_MS, **_usual_ms(observers)}, _late_ms(observers, 0)
    fleet = ClientFleet(
        group_id=log.group_id,
        processes=[
            _process(observer, name, end, usual_ms, late_ms)
            for observer, name, end in zip(observers, names, ends, strict=True)
        ],
        outside=found.outside,
        partition_counts=_partition_counts(run),
        ignored=dict(found.ignored + Counter({"sent twice": sum(o.repeated for o in observers)})),
        senders={request_id: keys[id(observer)] for request_id, observer in found.sender.items()},
        share_tasks=tasks_ms.keys(),
        share_task_ms=task_ms,
    )
    return fleet, Run(run.group_id, run.steps, run.until_ms, dict(fleet.senders))


def _process(
    observer: _MemberObserver,
    name: ProcessName,
    ends: LogMoment | None,
    usual_ms: Mapping[EpochReactionKind, int],
    late_ms: int,
) -> EpochProcess:
    return EpochProcess(
        key=name.key,
        client=name.client,
        starts=observer.first,
        ends=ends,
        leave=observer.left,
        pauses=observer.pauses,
        commits=observer.commits,
        requests=observer.requests,
        known=observer.known,
        updates=observer.updates,
        reactions=observer.reactions,
        usual_ms={**usual_ms, **_usual_ms([observer])},
        beats=observer.beats,
        late_ms=_late_ms([observer], late_ms),
    )


def _usual_ms(observers: Sequence[_MemberObserver]) -> dict[EpochReactionKind, int]:
    """Return the median time of each kind of reaction that these processes show."""
    seen: dict[EpochReactionKind, list[int]] = {}
    for observer in observers:
        for kind, reactions in observer.reactions.items():
            seen.setdefault(kind, []).extend(r.to.at_ms - r.from_ms for r in reactions if r.request_id)
    return {kind: median_low(times_ms) for kind, times_ms in seen.items() if times_ms}


def _late_ms(observers: Sequence[_MemberObserver], default_ms: int) -> int:
    """Return the median time by which regular heartbeats exceed their interval, without pauses, or 0 if they
    come earlier.
    """
    late_ms = [
        beat.to.at_ms - beat.from_ms - interval_ms
        for observer in observers
        for interval_ms, beats in observer.beats.items()
        for beat in beats
        if beat.request_id and beat.to.at_ms - beat.from_ms <= PAUSE_INTERVALS * interval_ms
    ]
    return max(0, median_low(late_ms)) if late_ms else default_ms


def _partition_counts(run: Run) -> dict[str, list[tuple[int, int]]]:
    """Return the number of partitions of each topic id, or of tasks of each subtopology: those of topics that
    clients subscribe by name, and those that members were assigned.
    """
    counts: dict[str, list[tuple[int, int]]] = {}
    for step in run.steps:
        request = step.event.request if isinstance(step.event, Received) else None
        if isinstance(request, ConsumerGroupHeartbeat | ShareGroupHeartbeat):
            for image in (request.topics or {}).values():
                if image is not None:
                    grow(counts, str(image.id), image.partitions, step.at_ms)
        for reply in step.effects.replies:
            for topic, number in partitions_of(assigned(reply.response) or {}):
                grow(counts, topic, number + 1, step.at_ms)
    return counts


def _share_tasks(run: Run, outside: Iterable[SentRequest]) -> tuple[dict[str, int], int]:
    """Return the times at which the share coordinator's tasks began, and the median time to the result."""
    began_ms = {entry.cause: entry.at_ms for entry in run.history() if entry.type in _TASKS}
    took_ms = [
        sent.moment.at_ms - began_ms[task]
        for sent in outside
        if isinstance(sent.request, ShareStateResult)
        and (task := sent.request.task.partition("@")[0]) in began_ms
    ]
    return began_ms, median_low(took_ms) if took_ms else _TASK_MS
