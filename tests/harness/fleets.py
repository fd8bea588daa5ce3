"""Fleets of simulated clients, written by hand or drawn at random, and the logs that they make."""

from collections.abc import Sequence
from typing import TypedDict

from hypothesis import strategies as st

from kafka_why.contract.kafka.requests import JoinGroup, LeaveGroup, LeavingMember, Protocol
from kafka_why.contract.protocols.subscriptions import Subscription, encode_subscription
from operations.whatif.changes import UNCHANGED
from operations.whatif.facts import (
    ClassicProcess,
    ClientFleet,
    ClientProcess,
    LogMoment,
    ReactionKind,
    SentRequest,
    Stall,
    TimeSpan,
)
from operations.whatif.run import GroupLog, Run
from operations.whatif.text import simulate
from state.config import Configs, CoordinatorConfig
from state.protocol import Received
from state.timeline import Row

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


def recorded(made: ClientFleet, until_s: float, config: CoordinatorConfig | None = None) -> GroupLog:
    """Return the log that the fleet makes, as it is on the topic."""
    log = GroupLog(made.group_id, [], Configs(config or CoordinatorConfig()), at(until_s))
    return log_of_run(simulate(made, log, UNCHANGED), log)


def log_of_run(run: Run, log: GroupLog) -> GroupLog:
    """Return the requests of a run as a log with the same circumstances."""
    received = [(step.at_ms, step.event) for step in run.steps if isinstance(step.event, Received)]
    rows = [Row(at_ms, event.request_id, event.request) for at_ms, event in received]
    return GroupLog(log.group_id, rows, log.configs, log.until_ms, log.outages)


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
            # A process that dies after a pause, before it joins again, looks like one that joins again late.
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
