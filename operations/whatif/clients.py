"""The clients of a group, found in its log: when each ran, and how fast it reacted.

The log is first applied as it is (`operations.whatif.run.open_loop`), so that each request has its answer.
What the coordinator did to a client, such as its expiry or removal, is not a fact about the client. Facts are
when it ran, what it requested, when it was silent, and how long after each answer it acted.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from kafka_why.contract.codec import AnyRequest
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
    TopicMetadata,
)
from operations.whatif.facts import (
    ClassicProcess,
    ClientFleet,
    LogMoment,
    ObservedProcess,
    ReactionKind,
    SentRequest,
)
from operations.whatif.observer import ProcessObserver, check_readable, read_partitions
from operations.whatif.run import GroupLog, Run, WhatIfError, open_loop
from state.protocol import Received

Observed = TypeVar("Observed", bound=ObservedProcess[Any, Any])


def name_processes(observers: Sequence[ObservedProcess[Any, Any]]) -> None:
    """Set the `client` of each process, and its `key`: `worker-1`, then `worker-1 (run 2)` for the next run.

    `observers` are in the order of their starts, and their `end` is set.

    A client is a `group.instance.id`, else a client id on one host. Processes that ran at the same time are
    different clients, such as `worker` and `worker#2`.
    """
    hosts: dict[str, set[str]] = {}
    for observer in observers:
        hosts.setdefault(observer.client_id, set()).add(observer.client_host)
    # By base name, each client with the end of its last process, or None if that still runs.
    clients_by_base_name: dict[str, list[tuple[str, LogMoment | None]]] = {}
    runs: Counter[str] = Counter()
    for observer in observers:
        base_name = observer.instance_id or observer.client_id or "client"
        if observer.instance_id is None and len(hosts[observer.client_id]) > 1:
            base_name = f"{base_name}@{observer.client_host}"
        clients = clients_by_base_name.setdefault(base_name, [])
        # A client is used again after its last process has ended.
        reusable = [n for n, (_, end) in enumerate(clients) if end and end < observer.first.moment]
        if observer.instance_id is not None and clients:
            reusable = [0]  # a static member: the next process takes its place, whether or not it still runs
        new_client = f"{base_name}#{len(clients) + 1}" if clients else base_name
        client = observer.client = clients.pop(reusable[0])[0] if reusable else new_client
        clients.append((client, observer.end))
        runs[client] += 1
        observer.key = client if runs[client] == 1 else f"{client} (run {runs[client]})"


# A process that owes heartbeats has paused if it is silent for more than this many heartbeat intervals.
PAUSE_INTERVALS: Final = 2

# The assumed time of a reaction that no client of the group has in the log.
DEFAULT_MS: Final[Mapping[ReactionKind, int]] = MappingProxyType(
    {
        ReactionKind.GIVEN_ID: 10,
        ReactionKind.REBALANCE: 10,
        ReactionKind.ERROR: 100,  # retry.backoff.ms
        ReactionKind.REVOKED: 10,
        ReactionKind.POLLED: 10,
        ReactionKind.LEADER_SYNC: 10,
        ReactionKind.SYNC: 10,
        ReactionKind.HEARTBEAT: 3_000,  # heartbeat.interval.ms
    }
)


class RequestSorter(ABC, Generic[Observed]):
    """A sorter of the log's requests by the processes that sent them."""

    def __init__(self) -> None:
        self.observers: list[Observed] = []
        self.by_id: dict[str, Observed] = {}  # by member id
        self.senders: dict[str, Observed] = {}  # by request id
        self.other_requests: list[SentRequest] = []
        self.ignored: Counter[str] = Counter()  # as in `ClientFleet`
        self._position = 0  # in the log, of the last request

    def apply(self, run: Run) -> None:
        """Sort all requests of a run, and let each sender observe its answers. Raises WhatIfError."""
        for step in run.steps:
            if isinstance(step.event, Received):
                self._position += 1
                moment, request_id = LogMoment(step.at_ms, self._position), step.event.request_id
                observer = self.dispatch(SentRequest(moment, request_id, step.event.request))  # type: ignore[arg-type]
                if observer is not None:
                    self.senders[request_id] = observer
            for reply in step.effects.replies:
                observer = self.senders.get(reply.response.request)
                if observer is not None:
                    observer.observe_response(step.at_ms, reply.response)
                    if observer.member_id:
                        self.by_id[observer.member_id] = observer
        if not self.observers:
            raise WhatIfError(
                f"the log of group {run.group_id} has no request to join: there is no client to simulate"
            )

    def ignored_requests(self) -> dict[str, int]:
        """Return `ignored` with the requests that clients repeated."""
        # `+` omits a count of 0.
        return dict(self.ignored + Counter({"sent twice": sum(o.repeated for o in self.observers)}))

    def sent_run(self, run: Run) -> Run:
        """Return the run with the keys of the processes that sent its requests."""
        senders = {request_id: observer.key for request_id, observer in self.senders.items()}
        return Run(run.group_id, run.steps, run.until_ms, senders)

    @abstractmethod
    def dispatch(self, sent: SentRequest) -> Observed | None:
        """Let the process that sent the request record it. Return this process if it also has to record the
        answer, else None.
        """


class _ClassicSorter(RequestSorter[ProcessObserver]):
    """A sorter of the requests of a group of the classic protocol."""

    def __init__(self) -> None:
        super().__init__()
        # By the id of a LeaveGroup from an administrator, the processes of the members that it removes, in
        # its order. None: the log shows no process with the member id, or the request has none.
        self.removals: dict[str, list[ProcessObserver | None]] = {}

    def dispatch(self, sent: SentRequest) -> ProcessObserver | None:
        moment, request_id, request = sent
        observer = None
        match request:
            case JoinGroup():
                observer = self._process_of_join(moment, request_id, request)
                observer.record_join(moment, request_id, request)
            case SyncGroup() | Heartbeat():
                observer = self.by_id.get(request.member_id)
                if observer is None:
                    self.ignored["of members that the log does not have"] += 1
                elif isinstance(request, SyncGroup):
                    observer.record_sync(moment, request_id, request)
                else:
                    observer.record_heartbeat(moment, request_id, request)
            case OffsetCommit() if request.member_id in self.by_id:
                observer = self.by_id[request.member_id]
                observer.record_commit(moment, request_id, request)
            case LeaveGroup():
                observer = self._process_of_leave(moment, request_id, request)
            case DescribeGroup() | OffsetFetch():
                self.ignored["that only read"] += 1
            case _:
                self.other_requests.append(sent)
        return observer

    def _process_of_join(self, moment: LogMoment, request_id: str, request: JoinGroup) -> ProcessObserver:
        """Return the process of a JoinGroup. It is the process with its member id, else a process of the same
        client that has lost its id. If there is neither, a new process begins with this JoinGroup.
        """
        check_readable(request)
        identity = request.client_id, request.client_host, request.group_instance_id
        if request.member_id in self.by_id:
            return self.by_id[request.member_id]
        without_id = [
            observer
            for observer in self.observers
            if observer.identity == identity and observer.has_lost_id()
        ]
        if without_id:
            return min(without_id, key=lambda observer: observer.answered_ms)
        observer = ProcessObserver(SentRequest(moment, request_id, request), *identity)
        self.observers.append(observer)
        return observer

    def _process_of_leave(
        self, moment: LogMoment, request_id: str, request: LeaveGroup
    ) -> ProcessObserver | None:
        """Record a LeaveGroup. Return the process that leaves by itself, or None if an administrator sent the
        request to remove members.
        """
        members = [self.by_id.get(leaving.member_id) for leaving in request.members if leaving.member_id]
        leaver = members[0] if len(request.members) == 1 and members else None
        sender = request.client_id, request.client_host
        if leaver is not None and (leaver.client_id, leaver.client_host) == sender:
            leaver.record_leave(moment, request_id, request)
            return leaver
        self.removals[request_id] = [self.by_id.get(leaving.member_id) for leaving in request.members]
        self.other_requests.append(SentRequest(moment, request_id, request))
        return None


def find_classic_clients(log: GroupLog) -> tuple[ClientFleet, Run]:
    """Return the clients of a log, and the log's run. Raises WhatIfError if the group cannot be simulated."""
    run = open_loop(log)
    sorter = _ClassicSorter()
    sorter.apply(run)
    interval_ms = _heartbeat_interval_ms(sorter.observers)
    durations_ms = {
        kind: [ms for o in sorter.observers for ms in _durations_ms(o, kind, interval_ms)]
        for kind in ReactionKind
    }
    usual_ms = {
        kind: median_low(times_ms) if times_ms else DEFAULT_MS[kind]
        for kind, times_ms in durations_ms.items()
    }
    for observer in sorter.observers:
        observer.end = _find_end(observer, log.until_ms, interval_ms)
    name_processes(sorter.observers)
    fleet = ClientFleet(
        group_id=log.group_id,
        processes=[_build_process(o, interval_ms, usual_ms, log.until_ms) for o in sorter.observers],
        other_requests=sorter.other_requests,
        removals={
            request_id: [None if o is None else o.key for o in removed]
            for request_id, removed in sorter.removals.items()
        },
        partition_counts=_partition_counts(run),
        ignored=sorter.ignored_requests(),
    )
    return fleet, sorter.sent_run(run)


def _build_process(
    observer: ProcessObserver, interval_ms: int, usual_ms: Mapping[ReactionKind, int], until_ms: int
) -> ClassicProcess:
    """Return the observed process. `interval_ms` and `usual_ms` are the group's, for missing times."""
    own_interval_ms = _heartbeat_interval_ms([observer], interval_ms)
    max_silence_ms = PAUSE_INTERVALS * own_interval_ms
    long_gaps = [
        gap
        for gap in observer.gaps
        if gap.span.to_ms is not None and gap.span.to_ms - gap.span.from_ms > max_silence_ms
    ]
    # If it has sent no heartbeat while a JoinGroup was due, the time may have been too short. Only a long gap
    # shows that it stops its heartbeats.
    beats_while_rebalancing = observer.beats_while_due or not any(gap.is_join_due for gap in long_gaps)
    own_ms = {kind: list(_durations_ms(observer, kind, own_interval_ms)) for kind in ReactionKind}
    if observer.left is None:
        # One ms after the end, so that the simulated process does not react at the end.
        observer.record_wait_until((until_ms if observer.end is None else observer.end.at_ms) + 1)
    return ClassicProcess(
        key=observer.key,
        client=observer.client,
        joins=observer.joins,
        starts=observer.first,
        ends=observer.end,
        leave=observer.left,
        reactions=observer.reactions,
        usual_ms={
            kind: median_low(own_ms[kind]) if own_ms[kind] else usual_ms[kind] for kind in ReactionKind
        },
        pauses=[gap.span for gap in long_gaps if beats_while_rebalancing or not gap.is_join_due],
        stalls=observer.stalls,
        rejoins=observer.rejoins,
        commits=observer.commits,
        beats_while_rebalancing=beats_while_rebalancing,
    )


def _heartbeat_interval_ms(observers: Sequence[ProcessObserver], default_ms: int | None = None) -> int:
    """Return the median time between two heartbeats of a process, or the default if there are none."""
    gaps_ms = [ms for observer in observers for ms in observer.heartbeat_gaps_ms]
    return median_low(gaps_ms) if gaps_ms else (default_ms or DEFAULT_MS[ReactionKind.HEARTBEAT])


def _durations_ms(observer: ProcessObserver, kind: ReactionKind, interval_ms: int) -> Iterator[int]:
    """Yield the durations of a process's reactions. A heartbeat's is the time since the previous one."""
    if kind is ReactionKind.HEARTBEAT:
        yield from (ms for ms in observer.heartbeat_gaps_ms if ms <= PAUSE_INTERVALS * interval_ms)
    else:
        reactions = observer.reactions.get(kind, ())
        yield from (r.to.at_ms - r.from_ms for r in reactions if r.request_id)  # "" if it has not reacted


def _find_end(observer: ProcessObserver, until_ms: int, interval_ms: int) -> LogMoment | None:
    """Return the moment of the process's last request if it has ended, else None.

    A process has ended if it left, if another one took its `group.instance.id`, or if it had a request to
    send and sent nothing for longer than PAUSE_INTERVALS heartbeat intervals. A process that was refused for
    good has not ended, because an experiment may accept it.
    """
    if observer.left is not None:
        return observer.left.moment
    if observer.refused:
        return None
    silent_ms = until_ms - max(observer.last_request.at_ms, observer.answered_ms)
    max_silence_ms = PAUSE_INTERVALS * _heartbeat_interval_ms([observer], interval_ms)
    has_ended = observer.fenced or (observer.must_act() and silent_ms > max_silence_ms)
    return observer.last_request if has_ended else None


def _partition_counts(run: Run) -> dict[str, list[tuple[int, int]]]:
    """Return each topic's known numbers of partitions: from assignments, JoinGroups, and topic metadata."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for step in run.steps:
        for topic, count in _counts_in(step.event.request if isinstance(step.event, Received) else None):
            record_partition_count(counts, topic, count, step.at_ms)
        for entry in step.effects.history:
            if entry.type is EntryType.STABLE:
                for assignment in (entry.assignments or {}).values():
                    for topic, number in sorted(read_partitions(assignment)):
                        record_partition_count(counts, topic, number + 1, step.at_ms)  # at least this many
    return counts


def _counts_in(request: AnyRequest | None) -> Iterator[tuple[str, int]]:
    """Yield the topics that a request has metadata of, each with its number of partitions."""
    if isinstance(request, JoinGroup):
        yield from request.partitions_per_topic.items()
    if isinstance(request, TopicMetadata):
        yield from ((topic, image.partitions) for topic, image in request.topics.items() if image is not None)


def record_partition_count(
    counts: dict[str, list[tuple[int, int]]], topic: str, count: int, at_ms: int
) -> None:
    """Record a topic's number of partitions if it is greater than the last one. Of several numbers at one
    time, only the greatest is recorded.
    """
    recorded = counts.setdefault(topic, [])
    if recorded:
        last_at_ms, last_count = recorded[-1]
        if last_count >= count:
            return
        if last_at_ms == at_ms:
            recorded.pop()
    recorded.append((at_ms, count))
