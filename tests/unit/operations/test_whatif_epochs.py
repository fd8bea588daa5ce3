"""Groups of the consumer, share and streams protocols through the closed loop of `whatif`."""

import dataclasses
from collections.abc import Callable
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS, EntryType
from kafka_why.contract.kafka.requests import AlterGroupConfigs, ConsumerGroupHeartbeat
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from kafka_why.page.commands import suggested_tries
from kafka_why.wording import Clock
from operations.replay.recording import RecordingFile
from operations.whatif.changes import UNCHANGED, parse_changes
from operations.whatif.epoch_clients import find_epoch_clients
from operations.whatif.epoch_requests import has_report
from operations.whatif.facts import ClientFleet, EpochProcess, LogMoment, SentHeartbeat, SentRequest
from operations.whatif.figures import RunFigures
from operations.whatif.run import GroupLog, log_of
from operations.whatif.text import answer, answer_text, simulate
from operations.whatif.validation import MatchKind
from state.config import Configs, CoordinatorConfig
from state.protocol import Outage, Received
from state.timeline import Row
from tests.harness.common import Common
from tests.harness.consumer_log import ConsumerLog
from tests.harness.examples import examples
from tests.harness.fleets import GROUP, at, fleet, log_of_run, member, recorded, tried
from tests.harness.random_log import GROUPS
from tests.harness.share_log import ShareLog
from tests.harness.streams_log import StreamsLog

PROTOCOLS = (CONSUMER, SHARE, STREAMS)
RECORDING = RecordingFile(Path(__file__).parents[2] / "data" / "members_recording.zst")
"""Real clients of Kafka 4.4 in instances of two stream threads, a consumer and a share consumer each.

Two instances start, the first one with static members. A third one is added and killed. The second one is
stopped for longer than its sessions, closed, and started again. Then the first one is rolled.
"""
COMMON: Common = {
    "group_id": GROUP,
    "correlation_id": "c",
    "reply_partition": 0,
    "api_version": 1,
    "client_id": "admin",
}


TOPICS = ("jobs", "log", "more")


@pytest.mark.parametrize(("group_id", "rebalances"), [("words", 7), ("readers", 8), ("sharers", 11)])
def test_simulation_reproduces_recorded_clients(group_id: str, rebalances: int) -> None:
    """Every entry of the history is the same."""
    log = log_of(RECORDING, group_id)
    found, run = find_epoch_clients(log)
    assert simulate(found, log, UNCHANGED).history() == run.history()
    validation = answer(log, []).validation
    assert (validation.count(MatchKind.MATCHED), len(validation.pairs)) == (rebalances, rebalances)
    assert (validation.worst_ms(), validation.objections) == (0, [])


@pytest.mark.parametrize(
    ("group_id", "protocol", "more", "real"),
    [
        ("words", STREAMS, "streams.num.standby.replicas=0", (9, 20, 10_849)),
        ("sharers", SHARE, "", (11, 11, 10_713)),
    ],
)
def test_experiment_has_the_outcome_of_real_clients(
    group_id: str, protocol: str, more: str, real: tuple[int, int, int]
) -> None:
    """`real` has the figures of real clients that did the same under these settings."""
    times = {"heartbeat.interval.ms": 1_000, "session.timeout.ms": 10_000}
    settings = (
        f"group.{protocol}.{least}{name}={ms}" for name, ms in times.items() for least in ("min.", "")
    )
    _, now = tried(log_of(RECORDING, group_id), f"{' '.join(settings)} {more}")
    rebalances, generations, longest_ms = real
    assert (now.rebalances, now.generations) == (rebalances, generations)
    assert abs(now.longest_ms - longest_ms) < 1_000


def test_simulated_offset_reports_cause_no_heartbeat_before_the_interval_ends() -> None:
    """With a longer interval, offsets of tasks cause no heartbeats before its end."""
    log = log_of(RECORDING, "words")
    found, _ = find_epoch_clients(log)
    run = simulate(found, log, parse_changes(["group.streams.heartbeat.interval.ms=15000"]))
    sent: dict[str, list[tuple[int, StreamsGroupHeartbeat]]] = {}
    for step in run.steps:
        request = step.event.request if isinstance(step.event, Received) else None
        if isinstance(request, StreamsGroupHeartbeat):
            sent.setdefault(request.member_id, []).append((step.at_ms, request))
    pairs = (pair for heartbeats in sent.values() for pair in pairwise(heartbeats))
    regular = [(last, now) for (last, _), (now, it) in pairs if it.member_epoch > 0 and not has_report(it)]
    assert len(regular) > 50
    assert min(now_ms - last_ms for last_ms, now_ms in regular) >= 15_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_simultaneous_silence_of_all_members_does_not_count_as_pauses(protocol: str) -> None:
    """Their coordinator or gateway is away, and they continue to consume. A single instance may pause."""
    silent = fleet(*(member(protocol, name, pauses_s=[(30, 50)]) for name in ("a", "b")))
    found = answer(recorded(silent, 60), [])
    assert found.recorded.outcome.longest_ms < 12_000
    heading = answer_text(found, Clock(UTC)).splitlines()[1]
    assert heading == "Clients  2, started 2 times, all silent 1 time"
    threads = (1, 2) if protocol == STREAMS else (1,)
    single = fleet(*(member(protocol, "a", run=thread, pauses_s=[(30, 50)]) for thread in threads))
    assert answer(recorded(single, 60), []).recorded.outcome.longest_ms >= 20_000


def dead(protocol: str) -> ClientFleet:
    return fleet(member(protocol, "a"), member(protocol, "b", 1, ends_s=60, leaves=False))


@pytest.mark.parametrize(
    ("made", "setting", "is_so"),
    [
        pytest.param(
            fleet(
                member(CONSUMER, "a", ends_s=50),
                member(CONSUMER, "b", 1, ends_s=60),
                member(CONSUMER, "a", 53, run=2),
                member(CONSUMER, "b", 63, run=2),
            ),
            "group.instance.id=client.id",
            lambda was, now: (was.rebalances, now.rebalances) == (5, 2) and now.moved < was.moved,
            id="static members do not rebalance when they are started again",
        ),
        pytest.param(
            fleet(member(CONSUMER, "a"), member(CONSUMER, "b", 10), member(CONSUMER, "c", 40)),
            "group.remote.assignor=range",
            lambda was, now: now.moved > was.moved,
            id="range moves more partitions than uniform",
        ),
        pytest.param(
            fleet(member(STREAMS, "a")),
            "group.streams.initial.rebalance.delay.ms=0",
            lambda was, now: now.stood_still_ms == 0 < was.stood_still_ms,
            id="the initial delay is the coordinator's",
        ),
        pytest.param(
            fleet(member(SHARE, "a")),
            "coordinator.share.assign.at.once=false",
            lambda was, now: now.stood_still_ms > was.stood_still_ms + 3_000,
            id="a new member waits for initialized partitions",
        ),
        pytest.param(
            fleet(member(SHARE, "a"), member(SHARE, "b", 20)),
            "group.share.max.size=1",
            lambda was, now: was.refused == [] and now.refused == ["b"],
            id="a full group refuses members",
        ),
    ],
)
def test_experiment_has_its_known_outcome(
    made: ClientFleet, setting: str, is_so: Callable[[RunFigures, RunFigures], bool]
) -> None:
    was, now = tried(recorded(made, 150), setting)
    assert is_so(was, now)


def test_experiment_setting_outlasts_a_recorded_change_of_it() -> None:
    """The recorded request to alter it does not end the experiment's setting."""
    request = AlterGroupConfigs(**COMMON, configs={"streams.initial.rebalance.delay.ms": "20000"})
    made = fleet(member(STREAMS, "a", 1))
    outside = [SentRequest(LogMoment(at(0)), "requests-0-9", request)]
    made = ClientFleet(GROUP, made.processes, outside, partition_counts=made.partition_counts)
    was, now = tried(recorded(made, 60), "streams.initial.rebalance.delay.ms=10000")
    assert 9_000 < was.stood_still_ms - now.stood_still_ms < 11_000


def test_simulated_share_coordinator_answers_tasks_missing_from_the_log() -> None:
    """In the log, the group is full when the member comes that subscribes to the topic."""
    config = CoordinatorConfig(group_share_max_size=1)
    made = fleet(member(SHARE, "a", ends_s=0.001), member(SHARE, "b", 0))
    was, now = tried(recorded(made, 60, config), "group.share.max.size=2")
    assert was.refused == ["b"]
    assert now.by_client["b"] < 2_000


def subscribing(process: EpochProcess, *topics: str) -> EpochProcess:
    """Return the process with these topics of six partitions each, by id in the order of `TOPICS`."""
    images: TopicImages = {name: TopicImage(UUID(int=1 + TOPICS.index(name)), 6) for name in topics}
    request = replace(process.starts.request, subscribed_topic_names=list(topics), topics=images)
    first = process.starts._replace(request=request)
    return dataclasses.replace(process, starts=first, requests={first.request_id: first})


def test_simulated_share_coordinator_answers_partitions_missing_from_a_recorded_task() -> None:
    """In the log, another client's join has their task. The experiment refuses that client."""
    made = fleet(
        member(SHARE, "a", ends_s=10),
        subscribing(member(SHARE, "b", 5), "log"),
        subscribing(member(SHARE, "c", 15), *TOPICS),
    )
    config = CoordinatorConfig(group_share_max_size=2)
    was, now = tried(recorded(made, 90, config), "group.share.max.size=1")
    assert (was.refused, now.refused) == ([], ["b"])
    assert now.longest_ms < 30_000


def test_partitions_of_a_simulated_client_stop_after_a_fatal_error() -> None:
    """The error is fatal for the client, so its partitions are not consumed even before its session ends."""
    alone = member(CONSUMER, "a")
    request = replace(alone.starts.request, member_epoch=1, topics=None, server_assignor="unknown")
    update = SentHeartbeat(LogMoment(at(30)), "refused", request)
    requests = {**alone.requests, update.request_id: update}
    alone = dataclasses.replace(alone, updates=[update], requests=requests)
    outcome = answer(recorded(fleet(alone), 60), []).recorded.outcome
    regular_ms = 30_050  # its first heartbeat after the update
    assert outcome.by_client["a"] == outcome.longest_ms == 60_000 - regular_ms


@pytest.mark.parametrize("protocol", [CONSUMER, SHARE])
def test_unassigned_partitions_count_as_stopped(protocol: str) -> None:
    """The only client that subscribes to the second topic is refused."""
    other = subscribing(member(protocol, "b"), "log")
    config = CoordinatorConfig().with_settings({f"group.{protocol}.max.size": 1})
    log = recorded(fleet(member(protocol, "a"), other), 60, config)
    was, now = tried(log, f"group.{protocol}.max.size=2")
    assert was.partitions == now.partitions == 12
    assert was.partition_ms >= 6 * 60_000 > now.partition_ms


def refused(protocol: str, *starts_s: float, ends_s: float | None = None) -> GroupLog:
    """Return the log of a full group, whose second client tries to join at these times, under other ids."""
    joins = [member(protocol, "b", start_s, run=run) for run, start_s in enumerate(starts_s, 1)]
    config = CoordinatorConfig().with_settings({f"group.{protocol}.max.size": 1})
    return recorded(fleet(member(protocol, "a", ends_s=ends_s), *joins), 60, config)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refused_client_that_restarts_is_simulated_as_one_client(protocol: str) -> None:
    found = answer(refused(protocol, 10, 15, 20), [parse_changes([f"group.{protocol}.max.size=30"])])
    assert [process.key for process in found.fleet.processes] == ["a", "b"]
    (now,) = found.tried
    was = answer(recorded(fleet(member(protocol, "a"), member(protocol, "b", 10)), 60), []).recorded.outcome
    assert (now.rebalances, now.generations, now.moved, now.by_client) == (
        was.rebalances,
        was.generations,
        was.moved,
        was.by_client,
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_simulated_refused_client_joins_under_its_last_member_id(protocol: str) -> None:
    log = refused(protocol, 10, 15, 35, ends_s=30)
    found, run = find_epoch_clients(log)
    assert [process.key for process in found.processes] == ["a", "b"]
    assert simulate(found, log, UNCHANGED).history() == run.history()


def test_simulated_client_never_has_a_negative_heartbeat_delay() -> None:
    """A shorter interval does not make its delay negative."""
    early = dataclasses.replace(member(CONSUMER, "a"), late_ms=-4_000)
    settings = "group.consumer.min.heartbeat.interval.ms=1000 group.consumer.heartbeat.interval.ms=1000"
    was, now = tried(recorded(fleet(early), 30), settings)
    assert now.by_client == was.by_client


def test_simulated_heartbeat_is_sent_only_after_the_last_answer() -> None:
    early = dataclasses.replace(member(CONSUMER, "a"), late_ms=-5_000)
    assert 100 < len(recorded(fleet(early), 0.2).rows) <= 201


def test_simulated_topic_change_survives_an_unsent_acknowledgement() -> None:
    """The first member changes its topics as it gives partitions up. In a full group it gives up none."""
    log = recorded(fleet(member(CONSUMER, "a"), member(CONSUMER, "b", 20)), 60)
    images: TopicImages = {
        "jobs": TopicImage(UUID(int=1), 6),
        "log": TopicImage(UUID(int=2), 6),
    }

    def changed(row: Row) -> Row:
        request = row.request
        if (
            isinstance(request, ConsumerGroupHeartbeat)
            and request.client_id == "a"
            and request.topic_partitions
            and len(request.topic_partitions[0].partitions) == 3
        ):
            new = replace(request, subscribed_topic_names=["jobs", "log"], topics=images)
            return replace(row, request=new)
        return row

    rows = [changed(row) for row in log.rows]
    assert sum(ours != theirs for ours, theirs in zip(rows, log.rows, strict=True)) == 1
    _, now = tried(dataclasses.replace(log, rows=rows), "group.consumer.max.size=1")
    assert now.refused == ["b"]
    assert now.generations == 2


def test_only_clients_that_never_joined_are_reported_as_refused() -> None:
    """Another client takes its place in the full group while it is paused."""
    config = CoordinatorConfig(group_share_max_size=2)
    made = fleet(member(SHARE, "a"), member(SHARE, "b", 1, pauses_s=[(30, 90)]), member(SHARE, "c", 85))
    found = answer(recorded(made, 150, config), [])
    assert EntryType.JOIN_REFUSED in [entry.type for entry in found.recorded.run.history()]
    assert found.recorded.outcome.refused == []


LOGS: dict[str, Callable[[int, CoordinatorConfig], ConsumerLog | ShareLog | StreamsLog]] = {
    CONSUMER: ConsumerLog,
    SHARE: ShareLog,
    STREAMS: StreamsLog,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", [3, 5])
def test_simulation_reproduces_clients_whose_answers_get_lost(protocol: str, seed: int) -> None:
    config = CoordinatorConfig()
    played = LOGS[protocol](seed, config)
    played.play(60)
    rows = [row for row in played.rows if row.request.group_id == GROUPS[0]]
    found = answer(GroupLog(GROUPS[0], rows, Configs(config), played.at_ms), [])
    assert found.validation.objections == []
    assert found.recorded.outcome.rebalances > 1


@examples(10)
@given(
    st.sampled_from(PROTOCOLS),
    st.lists(st.tuples(st.integers(0, 40), st.integers(10, 100), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 60),
)
def test_simulation_reproduces_any_fleet(
    protocol: str, lives: list[tuple[int, int, bool]], outage_s: int
) -> None:
    """Clients that start, leave, die and pause, and an outage of the coordinator."""
    made = fleet(*(_process(protocol, number, *life) for number, life in enumerate(lives)))
    log = GroupLog(GROUP, [], Configs(CoordinatorConfig()), at(200), [Outage(at(outage_s), at(outage_s + 7))])
    log = log_of_run(simulate(made, log, UNCHANGED), log)
    found, run = find_epoch_clients(log)
    assert {process.key for process in found.processes} == {process.key for process in made.processes}
    assert simulate(found, log, UNCHANGED).history() == run.history()


def _process(protocol: str, number: int, starts_s: int, lives_s: int, leaves: bool) -> EpochProcess:
    pauses = [] if leaves else [(starts_s + 5.0, starts_s + lives_s - 3.0)]
    ends_s = None if lives_s > 70 else starts_s + lives_s
    name = f"worker-{number}"
    return member(protocol, name, starts_s + number / 1_000, ends_s=ends_s, leaves=leaves, pauses_s=pauses)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_page_suggests_only_experiments_that_are_valid_for_the_group(protocol: str) -> None:
    log = recorded(dead(protocol), 150)
    report = answer(log, []).recorded.report
    assert report is not None
    tries = suggested_tries(report.rebalances[-1])
    assert len(answer(log, [parse_changes([setting]) for setting in tries]).tried) == len(tries) > 0


def test_whatif_table_names_tasks_and_epochs_of_a_streams_group() -> None:
    found = answer(recorded(dead(STREAMS), 150), [parse_changes(["streams.num.standby.replicas=1"])])
    lines = answer_text(found, Clock(UTC)).splitlines()
    assert "  without a copy of their state 3            0" in [line.rstrip() for line in lines]
    assert any(line.startswith("group epochs ") for line in lines)
    assert not any("partition" in line for line in lines)
