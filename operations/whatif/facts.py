"""The facts about a group's clients, which are the same in every experiment. `operations.whatif.clients` and
`operations.whatif.epoch_clients` find them in the log.

Times are milliseconds since the epoch. A *process* is one run of a *client*, from the request by which it
joins to the one by which it leaves, or to its last request.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from kafka_why.contract.kafka.requests import AnyRequest, ConsumerGroupHeartbeat, JoinGroup
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat

# The position of an action that is not in the log: after all requests of the same time.
NOT_IN_LOG = 1 << 62


class ReactionKind(StrEnum):
    """The kinds of reactions of a client of the classic protocol: its request, and the cause."""

    GIVEN_ID = "JoinGroup with the id of MEMBER_ID_REQUIRED"
    REBALANCE = "JoinGroup after REBALANCE_IN_PROGRESS"
    ERROR = "JoinGroup after another error"
    REVOKED = "JoinGroup after partitions were revoked"
    POLLED = "JoinGroup after max.poll.interval.ms was exceeded"
    LEADER_SYNC = "SyncGroup of the leader"
    SYNC = "SyncGroup of another member"
    HEARTBEAT = "Heartbeat"


class EpochReactionKind(StrEnum):
    """The kinds of reactions of a client of the consumer, share or streams protocol."""

    FENCED = "heartbeat that joins again after the member was fenced"
    ERROR = "heartbeat after another error"
    REVOKED = "heartbeat after partitions were given up"
    ASSIGNED = "heartbeat after partitions were only added"


class LogMoment(NamedTuple):
    """A time, and a position in the log, which orders actions of the same time."""

    at_ms: int
    position: int = NOT_IN_LOG


class Reaction(NamedTuple):
    """A request that a client sent at `to` in reaction to an event, after a wait that began at `from_ms`."""

    from_ms: int
    to: LogMoment
    request_id: str  # "" if the client had not sent the request by `to`


class TimeSpan(NamedTuple):
    """An open interval of time. `to_ms` is None if it does not end."""

    from_ms: int
    to_ms: int | None

    def holds(self, at_ms: int) -> bool:
        """Return True if the time is in the interval, and is not its begin or end."""
        return self.from_ms < at_ms and (self.to_ms is None or at_ms < self.to_ms)


Report = Mapping[str, Sequence[Any]]
"""Assigned partitions or tasks in the form of the request that reports them. A share group's requests do not
report them; there, the only key is `assignment`.
"""
EpochHeartbeat = ConsumerGroupHeartbeat | ShareGroupHeartbeat | StreamsGroupHeartbeat
R_co = TypeVar("R_co", bound=AnyRequest, covariant=True)


class Sent(NamedTuple, Generic[R_co]):
    """A request that every experiment sends at this time, unless it cannot be sent then."""

    moment: LogMoment
    request_id: str
    request: R_co


SentRequest = Sent[AnyRequest]
SentHeartbeat = Sent[EpochHeartbeat]


class ShareTaskPartition(NamedTuple):
    """A partition that a task of the share coordinator initializes or deletes. `task` is the id of the
    request, or the deadline, that led to the task.
    """

    task: str
    topic: str
    partition: int


class Stall(NamedTuple):
    """A time in which the process did not poll. It sent `leave` when `max.poll.interval.ms` was over."""

    span: TimeSpan
    leave: SentRequest


@dataclass(frozen=True, kw_only=True)
class ClientProcess:
    """A run of a client."""

    key: str  # unique name of the run
    client: str  # name that all runs of the client share
    starts: SentRequest  # its first request
    # The moment of its last request. None if the process runs at the end of the log, or if it was refused for
    # good, because an experiment may accept it.
    ends: LogMoment | None
    leave: SentRequest | None = None  # its own request to leave
    pauses: Sequence[TimeSpan] = ()  # times in which it did not even send heartbeats
    commits: Sequence[SentRequest] = ()
    rejoins: Sequence[SentRequest] = ()  # requests to join by its own decision


@dataclass(frozen=True, kw_only=True)
class ClassicProcess(ClientProcess):
    """A run of a client of the classic protocol."""

    # Its JoinGroups in order, each with its time in ms. They have its subscriptions, timeouts and protocols.
    joins: Sequence[tuple[int, JoinGroup]]
    reactions: Mapping[ReactionKind, Sequence[Reaction]] = field(default_factory=dict)
    usual_ms: Mapping[ReactionKind, int] = field(default_factory=dict)  # median time of each kind of reaction
    stalls: Sequence[Stall] = ()  # times in which it did not poll
    beats_while_rebalancing: bool = (
        True  # it sends heartbeats between REBALANCE_IN_PROGRESS and its JoinGroup
    )


@dataclass(frozen=True, kw_only=True)
class EpochProcess(ClientProcess):
    """A run of a client of the consumer, share or streams protocol.

    It keeps its member id until it leaves. If it is refused, it may try several ids before it is a member.
    """

    starts: SentHeartbeat
    leave: SentHeartbeat | None = None
    requests: Mapping[str, SentHeartbeat]  # its heartbeats by request id, in order
    # By request id, the epoch and the assignment that the client had from earlier answers.
    known: Mapping[str, tuple[int, Report]] = field(default_factory=dict)
    updates: Sequence[SentHeartbeat] = ()  # heartbeats that report something new, such as other topics
    reactions: Mapping[EpochReactionKind, Sequence[Reaction]] = field(default_factory=dict)
    usual_ms: Mapping[EpochReactionKind, int] = field(default_factory=dict)  # median time of each kind
    # Its regular heartbeats, by the interval in ms that the last answer required.
    beats: Mapping[int, Sequence[Reaction]] = field(default_factory=dict)
    late_ms: int = 0  # median delay of the regular heartbeats


@dataclass(frozen=True)
class ClientFleet:
    """All clients of a group, and the requests that others sent."""

    group_id: str
    processes: Sequence[ClientProcess]
    other_requests: Sequence[SentRequest] = ()  # every experiment sends them at their recorded times
    # By id of an administrator's LeaveGroup, the keys of the processes that it removes, in the order of its
    # members. None for a member without a process.
    removals: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    # By topic, its known numbers of partitions, each as (the time in ms since which it holds, the number).
    partition_counts: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    # By reason, the number of requests that change nothing or whose sender is unknown.
    ignored: Mapping[str, int] = field(default_factory=dict)
    share_tasks: Set[ShareTaskPartition] = frozenset()  # in the log
    share_task_ms: int = 0  # median time until the share coordinator's result of a task

    def counts_at(self, at_ms: int) -> dict[str, int]:
        """Return the topics' numbers of partitions at a time. Before the time of a topic's first known
        number, that number is assumed.
        """
        return {
            topic: max([count for from_ms, count in counts if from_ms <= at_ms] or [counts[0][1]])
            for topic, counts in self.partition_counts.items()
        }


NEVER = LogMoment(0)
"""The moment of the last request of a process that has sent none."""

S = TypeVar("S", SentRequest, SentHeartbeat)
K = TypeVar("K", ReactionKind, EpochReactionKind)


@dataclass
class ObservedProcess(ABC, Generic[S, K]):
    """An observer of one process in the log. It gets the process's requests and answers in order."""

    first: S  # its first request
    client_id: str
    client_host: str
    instance_id: str | None
    member_id: str = ""  # "" while it has none
    left: S | None = None  # its own request to leave
    last_request: LogMoment = NEVER
    reactions: dict[K, list[Reaction]] = field(default_factory=dict)
    rejoins: list[S] = field(default_factory=list)  # requests to join by its own decision
    commits: list[SentRequest] = field(default_factory=list)
    repeated: int = 0  # number of requests that change nothing, so that no experiment sends them
    due: tuple[K, int] | None = None  # its next reaction, and since when it waits to react (in ms)
    # These are as `ends`, `client` and `key` of `ClientProcess`, and are set last.
    end: LogMoment | None = None
    client: str = ""
    key: str = ""
    _heartbeat_wait_from_ms: int | None = None  # since when it waits for its next heartbeat

    @property
    def identity(self) -> tuple[str, str, str | None]:
        """The values by which the next process of the same client is recognized."""
        return self.client_id, self.client_host, self.instance_id

    @abstractmethod
    def observe_response(self, at_ms: int, response: AnyResponse) -> None:
        """Record the response to one of the process's requests."""

    def _add_reaction(self, kind: K, from_ms: int, moment: LogMoment, request_id: str = "") -> None:
        """Record a reaction. Without `request_id`, the process had not reacted by `moment`."""
        self.reactions.setdefault(kind, []).append(Reaction(from_ms, moment, request_id))
