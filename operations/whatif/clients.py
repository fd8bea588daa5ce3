"""The clients of a group, found in its log: when each ran, and how fast it reacted.

The log is first applied as it is (`operations.whatif.run.open_loop`), so that each request has its answer.
What the coordinator did to a client (it expired, it was removed) is not a fact about the client. Facts are
when it ran, what it requested, when it was silent, and how long after each answer it acted.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

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
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.protocols.subscriptions import ProtocolError, decode_assignment
from operations.whatif.facts import ClassicProcess, ClientFleet, LogMoment, ReactionKind, SentRequest
from operations.whatif.observer import ProcessObserver, check_readable, long_gaps
from operations.whatif.run import GroupLog, Run, WhatIfError, open_loop
from state.protocol import Received

# Names of processes and of the clients that they are runs of.


class ObservedProcess(Protocol):
    """An observer of one process, which takes its requests and answers in order."""

    client_id: str
    client_host: str
    instance_id: str | None
    member_id: str

    @property
    def first(self) -> SentRequest: ...
    def observe_response(self, at_ms: int, response: AnyResponse) -> None: ...


Observed = TypeVar("Observed", bound=ObservedProcess)


class ProcessName(NamedTuple):
    """The client, and the name of its run: `worker-1`, then `worker-1 (run 2)`."""

    client: str
    key: str


def names_of(observers: Sequence[ObservedProcess], ends: Sequence[LogMoment | None]) -> list[ProcessName]:
    """Return the names of processes in the order of their starts.

    A client is a `group.instance.id`, else a client id on one host. Processes that ran at the same time are
    different clients, such as `worker` and `worker#2`.
    """
    hosts: dict[str, set[str]] = {}
    for observer in observers:
        hosts.setdefault(observer.client_id, set()).add(observer.client_host)
    free: dict[str, list[tuple[str, LogMoment | None]]] = {}
    runs: Counter[str] = Counter()
    names = []
    for observer, end in zip(observers, ends, strict=True):
        base = observer.instance_id or observer.client_id or "client"
        if observer.instance_id is None and len(hosts[observer.client_id]) > 1:
            base = f"{base}@{observer.client_host}"
        known = free.setdefault(base, [])
        over = [place for place, (_, ended) in enumerate(known) if ended and ended < observer.first.moment]
        if observer.instance_id is not None and known:
            over = [0]  # a static member: the next process takes its place, whether or not it still runs
        client = known.pop(over[0])[0] if over else f"{base}#{len(known) + 1}" if known else base
        known.append((client, end))
        runs[client] += 1
        names.append(ProcessName(client, client if runs[client] == 1 else f"{client} (run {runs[client]})"))
    return names


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
        self.by_id: dict[str, Observed] = {}
        self.sender: dict[str, Observed] = {}
        self.outside: list[SentRequest] = []
        self.ignored: Counter[str] = Counter()
        self._place = 0

    def apply(self, run: Run) -> None:
        """Sort all requests of a run, and let each sender observe its answers. Raises WhatIfError."""
        for step in run.steps:
            if isinstance(step.event, Received):
                self._place += 1
                moment, request_id = LogMoment(step.at_ms, self._place), step.event.request_id
                observer = self.sender_of(SentRequest(moment, request_id, step.event.request))  # type: ignore[arg-type]
                if observer is not None:
                    self.sender[request_id] = observer
            for reply in step.effects.replies:
                observer = self.sender.get(reply.response.request)
                if observer is not None:
                    observer.observe_response(step.at_ms, reply.response)
                    if observer.member_id:
                        self.by_id[observer.member_id] = observer
        if not self.observers:
            raise WhatIfError(
                f"the log of group {run.group_id} has no request to join: there is no client to simulate"
            )

    @abstractmethod
    def sender_of(self, sent: SentRequest) -> Observed | None:
        """Return the process that sent the next request and let it observe it, or None if the request is not
        that of a process.
        """


def derive(log: GroupLog) -> tuple[ClientFleet, Run]:
    """Return the clients of a log, and what happened. Raises WhatIfError if the group cannot be simulated."""
    run = open_loop(log)
    found = _ClassicSorter()
    found.apply(run)
    fleet = _fleet(log, run, found)
    return fleet, Run(run.group_id, run.steps, run.until_ms, dict(fleet.senders))


class _ClassicSorter(RequestSorter[ProcessObserver]):
    """A sorter of the requests of a group of the classic protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.removals: dict[str, list[ProcessObserver | None]] = {}

    def sender_of(self, sent: SentRequest) -> ProcessObserver | None:
        moment, request_id, request = sent
        observer = None
        match request:
            case JoinGroup():
                observer = self._process_of_join(moment, request_id, request)
                observer.joined(moment, request_id, request)
            case SyncGroup() | Heartbeat():
                observer = self.by_id.get(request.member_id)
                if observer is None:
                    self.ignored["of members that the log does not have"] += 1
                elif isinstance(request, SyncGroup):
                    observer.synced(moment, request_id, request)
                else:
                    observer.beat(moment, request_id, request)
            case OffsetCommit() if request.member_id in self.by_id:
                observer = self.by_id[request.member_id]
                observer.committed(moment, request_id, request)
            case LeaveGroup():
                observer = self._process_of_leave(moment, request_id, request)
            case DescribeGroup() | OffsetFetch():
                self.ignored["that only read"] += 1
            case _:
                self.outside.append(sent)
        return observer

    def _process_of_join(self, moment: LogMoment, request_id: str, request: JoinGroup) -> ProcessObserver:
        """Return the process of a JoinGroup: that of its member id or, without one, a process that has lost
        its id. If there is none, the JoinGroup is the start of a new process.
        """
        check_readable(request)
        identity = request.client_id, request.client_host, request.group_instance_id
        if request.member_id in self.by_id:
            return self.by_id[request.member_id]
        lost = [
            observer
            for observer in self.observers
            if (observer.client_id, observer.client_host, observer.instance_id) == identity
            and observer.is_lost()
        ]
        if lost:
            return min(lost, key=lambda observer: observer.answered_ms)
        observer = ProcessObserver(SentRequest(moment, request_id, request), *identity)
        self.observers.append(observer)
        return observer

    def _process_of_leave(
        self, moment: LogMoment, request_id: str, request: LeaveGroup
    ) -> ProcessObserver | None:
        """Record a LeaveGroup. Return the process if it is the process's own request, or None if an
        administrator removes members by it.
        """
        members = [self.by_id.get(leaving.member_id) for leaving in request.members if leaving.member_id]
        own = members[0] if len(request.members) == 1 and members else None
        if own is not None and (own.client_id, own.client_host) == (request.client_id, request.client_host):
            own.leaves(moment, request_id, request)
            return own
        self.removals[request_id] = [self.by_id.get(leaving.member_id) for leaving in request.members]
        self.outside.append(SentRequest(moment, request_id, request))
        return None


def _fleet(log: GroupLog, run: Run, found: _ClassicSorter) -> ClientFleet:
    interval_ms = _heartbeat_interval_ms(found.observers)
    seen = {
        kind: [ms for o in found.observers for ms in _lengths_ms(o, kind, interval_ms)]
        for kind in ReactionKind
    }
    usual_ms = {kind: median_low(seen[kind]) if seen[kind] else DEFAULT_MS[kind] for kind in ReactionKind}
    ends = [_end(o, log.until_ms, interval_ms) for o in found.observers]
    names = names_of(found.observers, ends)
    by_observer = {id(o): name.key for o, name in zip(found.observers, names, strict=True)}
    ignored = found.ignored + Counter({"sent twice": sum(o.repeated for o in found.observers)})
    return ClientFleet(
        group_id=log.group_id,
        processes=[
            _process(observer, name.key, name.client, end, interval_ms, usual_ms, log.until_ms)
            for observer, name, end in zip(found.observers, names, ends, strict=True)
        ],
        outside=found.outside,
        removals={
            request_id: [None if o is None else by_observer[id(o)] for o in removed]
            for request_id, removed in found.removals.items()
        },
        partition_counts=_partition_counts(run),
        ignored=dict(+ignored),
        senders={request_id: by_observer[id(o)] for request_id, o in found.sender.items()},
    )


def _process(
    observer: ProcessObserver,
    key: str,
    client: str,
    ends: LogMoment | None,
    interval_ms: int,
    usual_ms: Mapping[ReactionKind, int],
    until_ms: int,
) -> ClassicProcess:
    own_interval_ms = _heartbeat_interval_ms([observer], interval_ms)
    beats_while_rebalancing = observer.beats_while_due or not any(
        gap.learned for gap in observer.gaps if _length_ms(gap.span) > PAUSE_INTERVALS * own_interval_ms
    )
    own = {kind: list(_lengths_ms(observer, kind, own_interval_ms)) for kind in ReactionKind}
    if observer.left is None:
        observer.waited_until((until_ms if ends is None else ends.at_ms) + 1)
    return ClassicProcess(
        key=key,
        client=client,
        joins=observer.joins,
        starts=observer.first,
        ends=ends,
        leave=observer.left,
        reactions=observer.reactions,
        usual_ms={kind: median_low(own[kind]) if own[kind] else usual_ms[kind] for kind in ReactionKind},
        pauses=list(
            long_gaps(
                observer.gaps,
                PAUSE_INTERVALS * own_interval_ms,
                beats_while_rebalancing=beats_while_rebalancing,
            )
        ),
        stalls=observer.stalls,
        rejoins=observer.rejoins,
        commits=observer.commits,
        beats_while_rebalancing=beats_while_rebalancing,
    )


def _heartbeat_interval_ms(observers: Sequence[ProcessObserver], default_ms: int | None = None) -> int:
    gaps_ms = [ms for observer in observers for ms in observer.heartbeat_gaps_ms]
    return median_low(gaps_ms) if gaps_ms else (default_ms or DEFAULT_MS[ReactionKind.HEARTBEAT])


def _lengths_ms(observer: ProcessObserver, kind: ReactionKind, interval_ms: int) -> Iterator[int]:
    """Yield the times of a process's reactions. Heartbeats count from one to the next, without pauses."""
    if kind is ReactionKind.HEARTBEAT:
        yield from (ms for ms in observer.heartbeat_gaps_ms if ms <= PAUSE_INTERVALS * interval_ms)
    else:
        yield from (r.to.at_ms - r.from_ms for r in observer.reactions.get(kind, ()) if r.request_id)


def _length_ms(span: tuple[int, int | None]) -> int:
    return (span[1] or span[0]) - span[0]


def _end(observer: ProcessObserver, until_ms: int, interval_ms: int) -> LogMoment | None:
    """Return the moment of the process's last request, or None if it runs at the end of the log, or was
    refused for good.

    A process fell silent if it had something to do at the end, and did nothing for longer than
    PAUSE_INTERVALS heartbeat intervals.
    """
    if observer.left is not None:
        return observer.left.moment
    if observer.refused:
        return None
    silent_ms = until_ms - max(observer.last_sign.at_ms, observer.answered_ms)
    longest_ms = PAUSE_INTERVALS * _heartbeat_interval_ms([observer], interval_ms)
    is_silent = observer.fenced or (observer.must_act() and silent_ms > longest_ms)
    return observer.last_sign if is_silent else None


def _partition_counts(run: Run) -> dict[str, list[tuple[int, int]]]:
    """Return each topic's known numbers of partitions: from assignments, JoinGroups, and topic metadata."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for step in run.steps:
        for topic, count in _counts_of(step.event.request if isinstance(step.event, Received) else None):
            grow(counts, topic, count, step.at_ms)
        for entry in step.effects.history:
            if entry.type is EntryType.STABLE:
                for assignment in (entry.assignments or {}).values():
                    for topic, number in _numbers(assignment):
                        grow(counts, topic, number + 1, step.at_ms)
    return counts


def _counts_of(request: AnyRequest | None) -> Iterator[tuple[str, int]]:
    if isinstance(request, JoinGroup):
        yield from request.partitions_per_topic.items()
    if isinstance(request, TopicMetadata):
        yield from ((topic, image.partitions) for topic, image in request.topics.items() if image is not None)


def grow(counts: dict[str, list[tuple[int, int]]], topic: str, count: int, at_ms: int) -> None:
    """Record a topic's number of partitions, if it is greater than the last. Of several at one time, only the
    greatest is kept.
    """
    known = counts.setdefault(topic, [])
    if known and known[-1][1] >= count:
        return
    if known and known[-1][0] == at_ms:
        known.pop()
    known.append((at_ms, count))


def _numbers(assignment: bytes) -> Iterator[tuple[str, int]]:
    try:
        yield from decode_assignment(assignment).partitions if assignment else ()
    except ProtocolError:
        return
