"""The facts about a group's clients that every experiment keeps. `operations.whatif.clients` and
`operations.whatif.epoch_clients` find them.

Times are milliseconds since the epoch. A *process* is one run of a client, from the request by which it joins
to the one by which it leaves, or its last sign of life. A *client* is what stays when a process is started
again.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from kafka_why.contract.kafka.requests import AnyRequest, ConsumerGroupHeartbeat, JoinGroup
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat

# The place of an action that is not in the log: after all rows of the same time.
NO_PLACE = 1 << 62


class ReactionKind(StrEnum):
    """The kinds of reactions of a client: its request, and the cause."""

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
    """A time and a place in the log, which decides between actions of the same time."""

    at_ms: int
    place: int = NO_PLACE


class Reaction(NamedTuple):
    """A request that a client sent at `to` in reaction to an event, after a wait that began at `from_ms`."""

    from_ms: int
    to: LogMoment
    request_id: str


class TimeSpan(NamedTuple):
    """An open interval of time. `to_ms` is None if it does not end."""

    from_ms: int
    to_ms: int | None

    def holds(self, at_ms: int) -> bool:
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


class Stall(NamedTuple):
    """A time in which the process did not poll. It left by `left` when `max.poll.interval.ms` was over."""

    span: TimeSpan
    left: SentRequest


@dataclass(frozen=True, kw_only=True)
class ClientProcess:
    """A run of a client.

    `key` is the unique name of the run, `client` that of all runs of the client. `starts` is its first
    request. `ends` is the moment of its last request, or None if it runs at the end of the log, or was
    refused for good. `leave` is its own request to leave. `pauses` are times in which it did not even send
    heartbeats.
    """

    key: str
    client: str
    starts: SentRequest
    ends: LogMoment | None
    leave: SentRequest | None = None
    pauses: Sequence[TimeSpan] = ()
    commits: Sequence[SentRequest] = ()

    @property
    def ends_ms(self) -> int | None:
        return None if self.ends is None else self.ends.at_ms


@dataclass(frozen=True, kw_only=True)
class ClassicProcess(ClientProcess):
    """A run of a client of the classic protocol.

    `joins` are its JoinGroups in order, the first of them at its start, with its subscriptions, timeouts and
    protocols. `rejoins` are JoinGroups by its own decision. `usual_ms` has the median time of each kind of
    reaction. `beats_while_rebalancing` is True if it sends heartbeats between REBALANCE_IN_PROGRESS and its
    JoinGroup.
    """

    joins: Sequence[tuple[int, JoinGroup]]
    reactions: Mapping[ReactionKind, Sequence[Reaction]] = field(default_factory=dict)
    usual_ms: Mapping[ReactionKind, int] = field(default_factory=dict)
    stalls: Sequence[Stall] = ()
    rejoins: Sequence[SentRequest] = ()
    beats_while_rebalancing: bool = True


@dataclass(frozen=True, kw_only=True)
class EpochProcess(ClientProcess):
    """A run of a client of the consumer, share or streams protocol: a member id until it leaves, or the
    member ids of one that is refused until it is a member.

    `requests` are its heartbeats by request id, in order. `known` has the epoch and the assignment of the
    answers before each of them. `updates` are heartbeats by its own decision, such as one with other topics.
    `beats` are its regular heartbeats, by the interval that the last answer required, and `late_ms` is the
    median time by which they exceed it. `usual_ms` has the median time of each other kind of reaction, unless
    no client of the group ever reacted so.
    """

    starts: SentHeartbeat
    leave: SentHeartbeat | None = None
    requests: Mapping[str, SentHeartbeat]
    known: Mapping[str, tuple[int, Report]] = field(default_factory=dict)
    updates: Sequence[SentHeartbeat] = ()
    reactions: Mapping[EpochReactionKind, Sequence[Reaction]] = field(default_factory=dict)
    usual_ms: Mapping[EpochReactionKind, int] = field(default_factory=dict)
    beats: Mapping[int, Sequence[Reaction]] = field(default_factory=dict)
    late_ms: int = 0


@dataclass(frozen=True)
class ClientFleet:
    """All clients of a group, and the requests that others sent.

    Every experiment sends the requests in `outside` at their recorded times. `removals` are the requests that
    remove members, with the processes of those members. `partition_counts` has each topic's known numbers of
    partitions, each with the time since which it holds. `ignored` counts, by reason, requests that change
    nothing or have no known sender. `senders` has the key of the process that sent each request.
    `share_tasks` are the tasks of the share coordinator in the log. `share_task_ms` is the median time until
    the result.
    """

    group_id: str
    processes: Sequence[ClientProcess]
    outside: Sequence[SentRequest] = ()
    removals: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    partition_counts: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    senders: Mapping[str, str] = field(default_factory=dict)
    share_tasks: Set[str] = frozenset()
    share_task_ms: int = 0

    def counts_at(self, at_ms: int) -> dict[str, int]:
        """Return the topics' numbers of partitions at a time. Before a topic's first known number, it counts
        as having that number.
        """
        return {
            topic: max([count for from_ms, count in known if from_ms <= at_ms] or [known[0][1]])
            for topic, known in self.partition_counts.items()
        }
