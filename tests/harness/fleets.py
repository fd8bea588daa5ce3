"""Fleets of simulated clients, written by hand or random, and the logs that they produce."""

from collections.abc import Sequence
from typing import Any, TypedDict
from uuid import UUID

from hypothesis import strategies as st

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS
from kafka_why.contract.kafka.requests import (
    ConsumerGroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
)
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat, TopicImage, TopicImages
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from kafka_why.contract.protocols.subscriptions import Subscription, encode_subscription
from operations.whatif.changes import UNCHANGED, parse_changes
from operations.whatif.facts import (
    ClassicProcess,
    ClientFleet,
    ClientProcess,
    EpochHeartbeat,
    EpochProcess,
    EpochReactionKind,
    LogMoment,
    ReactionKind,
    SentHeartbeat,
    SentRequest,
    Stall,
    TimeSpan,
)
from operations.whatif.figures import RunFigures
from operations.whatif.run import GroupLog, Run
from operations.whatif.text import answer, simulate
from state.config import Configs, CoordinatorConfig
from state.protocol import Received
from state.timeline import Row
from tests.harness.common import Common
from tests.harness.streams_requests import topology_of

BEGIN_MS = 1_795_230_000_000  # 2026-11-21 03:00 UTC
GROUP = "orders"
POLL_REASON = "consumer poll timeout has expired."


def process(
    client: str,
    starts_s: float = 0,
    *,
    run: int = 1,
    instance: str | None = None,
    ends_s: float | None = None,
    leaves: bool = True,
    pauses_s: Sequence[tuple[float, float]] = (),
    stalls_s: Sequence[tuple[float, float | None]] = (),
    session_ms: int = 10_000,
    poll_ms: int = 60_000,
    interval_ms: int = 3_000,
    rejoin_ms: int = 20,
    sync_ms: int = 5,
    assignors: Sequence[str] = ("range",),
    topics: Sequence[str] = ("jobs",),
    api_version: int = 9,
) -> ClassicProcess:
    """Return a process that runs from one second of the story to another."""
    metadata = encode_subscription(Subscription(tuple(topics)), version=1)
    join = JoinGroup(
        group_id=GROUP,
        correlation_id=client,
        reply_partition=0,
        api_version=api_version,
        client_id=client,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=poll_ms,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[Protocol(name, metadata) for name in assignors],
    )
    ends = None if ends_s is None else LogMoment(at(ends_s))
    leave = SentRequest(ends, "", _leave(client, "the consumer is being closed")) if ends and leaves else None
    return ClassicProcess(
        key=client if run == 1 else f"{client} (run {run})",
        client=client,
        joins=[(at(starts_s), join)],
        starts=SentRequest(LogMoment(at(starts_s)), "", join),
        ends=ends,
        leave=leave,
        usual_ms={
            **dict.fromkeys(ReactionKind, rejoin_ms),
            ReactionKind.HEARTBEAT: interval_ms,
            ReactionKind.GIVEN_ID: sync_ms,
            ReactionKind.SYNC: sync_ms,
            ReactionKind.LEADER_SYNC: 2 * sync_ms,
        },
        pauses=[TimeSpan(at(since), at(to)) for since, to in pauses_s],
        stalls=[
            Stall(
                TimeSpan(at(since), None if to is None else at(to)),
                SentRequest(LogMoment(at(since) + poll_ms), "", _leave(client, POLL_REASON)),
            )
            for since, to in stalls_s
        ],
    )


def at(seconds: float) -> int:
    """Return the time of a second of the story."""
    return BEGIN_MS + round(seconds * 1_000)


def fleet(*processes: ClientProcess, partitions: int = 6, topic: str = "jobs") -> ClientFleet:
    """Return a fleet that consumes one topic."""
    return ClientFleet(GROUP, processes, partition_counts={topic: [(BEGIN_MS, partitions)]})


def recorded(clients: ClientFleet, until_s: float, config: CoordinatorConfig | None = None) -> GroupLog:
    """Return the log that the fleet produces until this second of the story."""
    log = GroupLog(clients.group_id, [], Configs(config or CoordinatorConfig()), at(until_s))
    return log_of_run(simulate(clients, log, UNCHANGED), log)


def log_of_run(run: Run, log: GroupLog) -> GroupLog:
    """Return the requests of a run as a log with the same circumstances."""
    received = [(step.at_ms, step.event) for step in run.steps if isinstance(step.event, Received)]
    rows = [Row(at_ms, event.request_id, event.request) for at_ms, event in received]
    return GroupLog(log.group_id, rows, log.configs, log.until_ms, log.outages)


def tried(log: GroupLog, settings: str) -> tuple[RunFigures, RunFigures]:
    """Return the figures of the recorded log, and of an experiment with these settings."""
    result = answer(log, [parse_changes(settings.split())])
    assert result.validation.objections == []
    return result.recorded.outcome, result.tried[0]


def _leave(client: str, reason: str) -> LeaveGroup:
    return LeaveGroup(
        group_id=GROUP,
        correlation_id=client,
        reply_partition=0,
        api_version=5,
        client_id=client,
        members=[LeavingMember(reason=reason)],
    )


class _Settings(TypedDict):
    """The settings of a client, and its speed, in ms."""

    session_ms: int
    poll_ms: int
    interval_ms: int
    rejoin_ms: int
    sync_ms: int
    api_version: int


_SETTINGS = st.fixed_dictionaries(
    {
        "session_ms": st.sampled_from([6_000, 10_000, 30_000]),
        "poll_ms": st.sampled_from([20_000, 60_000]),
        "interval_ms": st.sampled_from([1_000, 2_000, 3_000]),
        "rejoin_ms": st.sampled_from([1, 15, 400, 3_000]),
        "sync_ms": st.sampled_from([1, 5, 300]),
        "api_version": st.sampled_from([3, 5, 9]),
    }
)


@st.composite
def fleets(draw: st.DrawFn) -> ClientFleet:
    """Draw a fleet of up to six clients that start, stop, pause, and are started again."""
    assignors = draw(
        st.sampled_from([("range",), ("sticky",), ("cooperative-sticky",), ("roundrobin", "range")])
    )
    processes = []
    for number in range(draw(st.integers(1, 6))):
        client = f"worker-{number}"
        settings: _Settings = draw(_SETTINGS)  # type: ignore[assignment]
        instance = client if draw(st.booleans()) else None
        starts_s = draw(st.integers(0, 30_000)) / 1_000
        for run in range(1, draw(st.integers(1, 3)) + 1):
            pause_s = draw(st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(10, 40))))
            # A process that dies after a pause, before it rejoins, cannot be told from one that rejoins late.
            lives_s = None if pause_s else draw(st.one_of(st.none(), st.integers(100, 60_000)))
            ends_s = None if lives_s is None else starts_s + lives_s / 1_000
            processes.append(
                process(
                    client,
                    starts_s,
                    run=run,
                    instance=instance,
                    ends_s=ends_s,
                    leaves=instance is None and draw(st.booleans()),
                    pauses_s=[] if pause_s is None else [(starts_s + pause_s[0], starts_s + sum(pause_s))],
                    assignors=assignors,
                    **settings,
                )
            )
            if ends_s is None:
                break
            starts_s = ends_s + draw(st.integers(1, 40_000)) / 1_000
    return fleet(*processes, partitions=draw(st.integers(1, 12)))


_TOPICS: TopicImages = {"jobs": TopicImage(UUID(int=1), 6), "log": TopicImage(UUID(int=2), 6)}
_TOPOLOGY = topology_of("0: jobs +log")


def member(
    protocol: str,
    client: str,
    starts_s: float = 0,
    *,
    run: int = 1,
    ends_s: float | None = None,
    leaves: bool = True,
    pauses_s: Sequence[tuple[float, float]] = (),
) -> EpochProcess:
    """Return a process that runs from one second of the story to another."""
    first = SentHeartbeat(LogMoment(at(starts_s)), f"join-{client}-{run}", _join(protocol, client, run))
    ends = None if ends_s is None else LogMoment(at(ends_s))
    leave = None
    if ends is not None and leaves:
        member_id = first.request.member_id
        request = type(first.request)(**_common(client), member_id=member_id, member_epoch=-1)
        leave = SentHeartbeat(ends, "", request)
    return EpochProcess(
        key=client if run == 1 else f"{client} (run {run})",
        client=client,
        starts=first,
        ends=ends,
        leave=leave,
        pauses=[TimeSpan(at(since), at(to)) for since, to in pauses_s],
        requests={first.request_id: first},
        usual_ms=dict.fromkeys(EpochReactionKind, 20),
        late_ms=5,
    )


def _join(protocol: str, client: str, run: int) -> EpochHeartbeat:
    common: dict[str, Any] = {**_common(client), "member_id": f"{client}-{run}", "member_epoch": 0}
    jobs = {"jobs": _TOPICS["jobs"]}
    if protocol == SHARE:
        return ShareGroupHeartbeat(**common, subscribed_topic_names=["jobs"], topics=jobs)
    common["rebalance_timeout_ms"] = 60_000
    if protocol == STREAMS:
        return StreamsGroupHeartbeat(
            **common,
            topology=_TOPOLOGY,
            process_id=client,
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            topics=_TOPICS,
        )
    assert protocol == CONSUMER
    return ConsumerGroupHeartbeat(**common, subscribed_topic_names=["jobs"], topic_partitions=[], topics=jobs)


def _common(client: str) -> Common:
    return {
        "group_id": GROUP,
        "correlation_id": client,
        "reply_partition": 0,
        "api_version": 1,
        "client_id": client,
    }
