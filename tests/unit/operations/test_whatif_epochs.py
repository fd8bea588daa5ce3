"""Groups of the consumer, share and streams protocols through the closed loop of `whatif`."""

import dataclasses
from collections.abc import Callable
from datetime import UTC
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS, EntryType
from kafka_why.contract.kafka.requests import AlterGroupConfigs, ConsumerGroupHeartbeat
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.page.commands import tries_for
from kafka_why.why.model import CauseKind
from kafka_why.wording import Clock
from operations.whatif.changes import UNCHANGED, parse_changes
from operations.whatif.epoch_clients import derive_epochs
from operations.whatif.facts import ClientFleet, EpochProcess, LogMoment, SentRequest
from operations.whatif.figures import RunFigures
from operations.whatif.run import GroupLog
from operations.whatif.text import answer, answer_text, simulate, summary
from state.config import Configs, CoordinatorConfig
from state.protocol import Outage
from state.timeline import Row
from tests.harness.common import Common
from tests.harness.consumer_log import ConsumerLog
from tests.harness.examples import examples
from tests.harness.fleets import GROUP, at, fleet, log_of_run, recorded
from tests.harness.member_fleets import member
from tests.harness.random_log import GROUPS
from tests.harness.share_log import ShareLog
from tests.harness.streams_log import StreamsLog

PROTOCOLS = (CONSUMER, SHARE, STREAMS)
COMMON: Common = {
    "group_id": GROUP,
    "correlation_id": "c",
    "reply_partition": 0,
    "api_version": 1,
    "client_id": "admin",
}


def short_sessions(protocol: str) -> str:
    """Return the settings of a session timeout of 10 s."""
    return f"group.{protocol}.min.session.timeout.ms=10000 group.{protocol}.session.timeout.ms=10000"


def tried(log: GroupLog, settings: str) -> tuple[RunFigures, RunFigures]:
    """Return what happened, and the outcome of one experiment."""
    found = answer(log, [parse_changes(settings.split())])
    assert found.validation.objections == []
    return found.recorded.outcome, found.tried[0]


def count(outcome: RunFigures, kind: CauseKind) -> int:
    return sum(cause.rebalances for cause in outcome.causes if cause.kind is kind)


def paused(protocol: str) -> ClientFleet:
    return fleet(member(protocol, "a"), member(protocol, "b", 1, pauses_s=[(30, 80)]))


def dead(protocol: str) -> ClientFleet:
    return fleet(member(protocol, "a"), member(protocol, "b", 1, ends_s=60, leaves=False))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_longer_session_timeout_keeps_a_paused_member(protocol: str) -> None:
    """Its partitions then stand still for longer, unless other members of a share group have them, too."""
    was, now = tried(recorded(paused(protocol), 150), f"group.{protocol}.session.timeout.ms=60000")
    assert (count(was, CauseKind.SESSION_TIMEOUT), count(now, CauseKind.SESSION_TIMEOUT)) == (1, 0)
    assert now.rebalances < was.rebalances
    assert now.longest_ms > was.longest_ms


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shorter_session_timeout_finds_a_dead_member_earlier(protocol: str) -> None:
    was, now = tried(recorded(dead(protocol), 150), short_sessions(protocol))
    assert was.rebalances == now.rebalances
    assert 30_000 < was.longest_ms - now.longest_ms <= 40_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shorter_session_timeout_lets_a_paused_member_join_again(protocol: str) -> None:
    made = fleet(member(protocol, "a"), member(protocol, "b", 1, pauses_s=[(30, 60)]))
    was, now = tried(recorded(made, 150), short_sessions(protocol))
    assert (count(was, CauseKind.SESSION_TIMEOUT), count(now, CauseKind.SESSION_TIMEOUT)) == (0, 1)
    assert count(now, CauseKind.MEMBER_JOINED) == count(was, CauseKind.MEMBER_JOINED) + 1


@pytest.mark.parametrize("protocol", [CONSUMER, STREAMS])
def test_longer_heartbeat_interval_makes_rebalances_slower(protocol: str) -> None:
    setting = f"group.{protocol}.heartbeat.interval.ms=15000"
    was, now = tried(recorded(dead(protocol), 150), setting)
    assert now.not_stable_ms > was.not_stable_ms + 5_000


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
            dead(STREAMS),
            "streams.num.standby.replicas=1",
            lambda was, now: was.moved == now.moved == was.without_copy > now.without_copy == 0,
            id="tasks move to their standbys",
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


def test_groups_own_setting_replaces_a_recorded_one() -> None:
    """The recorded request to alter it does not end the experiment's setting."""
    request = AlterGroupConfigs(**COMMON, configs={"streams.initial.rebalance.delay.ms": "20000"})
    made = fleet(member(STREAMS, "a", 1))
    outside = [SentRequest(LogMoment(at(0)), "requests-0-9", request)]
    made = ClientFleet(GROUP, made.processes, outside, partition_counts=made.partition_counts)
    was, now = tried(recorded(made, 60), "streams.initial.rebalance.delay.ms=10000")
    assert 9_000 < was.stood_still_ms - now.stood_still_ms < 11_000


def test_share_coordinator_answers_tasks_that_the_log_does_not_have() -> None:
    """In the log, the group is full when the member comes that subscribes to the topic."""
    config = CoordinatorConfig(group_share_max_size=1)
    made = fleet(member(SHARE, "a", ends_s=0.001), member(SHARE, "b", 0))
    was, now = tried(recorded(made, 60, config), "group.share.max.size=2")
    assert was.refused == ["b"]
    assert now.by_client["b"] < 2_000


@pytest.mark.parametrize("protocol", [CONSUMER, SHARE])
def test_partitions_that_nobody_was_assigned_stood_still(protocol: str) -> None:
    """The only client that subscribes to the second topic is refused."""
    other = member(protocol, "b")
    request = replace(
        other.starts.request, subscribed_topic_names=["log"], topics={"log": TopicImage(UUID(int=2), 6)}
    )
    first = other.starts._replace(request=request)
    other = dataclasses.replace(other, starts=first, requests={first.request_id: first})
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
def test_refused_client_that_is_started_again_is_one_client(protocol: str) -> None:
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
def test_refused_client_joins_under_its_last_member_id(protocol: str) -> None:
    log = refused(protocol, 10, 15, 35, ends_s=30)
    found, run = derive_epochs(log)
    assert [process.key for process in found.processes] == ["a", "b"]
    assert simulate(found, log, UNCHANGED).history() == run.history()


def test_client_whose_heartbeats_come_before_their_interval_ends() -> None:
    """A shorter interval does not make its delay negative."""
    early = dataclasses.replace(member(CONSUMER, "a"), late_ms=-4_000)
    settings = "group.consumer.min.heartbeat.interval.ms=1000 group.consumer.heartbeat.interval.ms=1000"
    was, now = tried(recorded(fleet(early), 30), settings)
    assert now.by_client == was.by_client


def test_heartbeat_is_never_sent_at_the_time_of_the_last_answer() -> None:
    early = dataclasses.replace(member(CONSUMER, "a"), late_ms=-5_000)
    assert 100 < len(recorded(fleet(early), 0.2).rows) <= 201


def test_other_topics_in_an_acknowledgement_are_kept_without_it() -> None:
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


def test_member_that_once_joined_is_not_refused() -> None:
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
SETTINGS = {
    CONSUMER: ("consumer.heartbeat.interval.ms=15000", "group.consumer.assignors=range"),
    SHARE: ("share.heartbeat.interval.ms=15000", "group.share.max.size=1"),
    STREAMS: ("streams.num.standby.replicas=2", "group.streams.max.size=1"),
}


@examples(10)
@given(st.sampled_from(PROTOCOLS), st.integers(0, 10_000))
def test_simulation_reproduces_clients_that_behave_well(protocol: str, seed: int) -> None:
    """Every entry of the history is the same. Every experiment has an outcome, and the same one again."""
    config = CoordinatorConfig()
    played = LOGS[protocol](seed, config)
    played.settle(12)
    rows = [row for row in played.rows if row.request.group_id == GROUPS[0]]
    log = GroupLog(GROUPS[0], rows, Configs(config), played.at_ms)
    if log.protocol != protocol:
        return  # the log has no heartbeat of a client
    found, run = derive_epochs(log)
    assert simulate(found, log, UNCHANGED).history() == run.history()
    experiments = [
        parse_changes([setting]) for setting in (*SETTINGS[protocol], short_sessions(protocol).split()[0])
    ]
    first = answer(log, experiments)
    assert first.validation.objections == []
    assert len(first.tried) == len(experiments) == 3
    assert summary(first) == summary(answer(log, experiments))


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
    found, run = derive_epochs(log)
    assert {process.key for process in found.processes} == {process.key for process in made.processes}
    assert simulate(found, log, UNCHANGED).history() == run.history()


def _process(protocol: str, number: int, starts_s: int, lives_s: int, leaves: bool) -> EpochProcess:
    pauses = [] if leaves else [(starts_s + 5.0, starts_s + lives_s - 3.0)]
    ends_s = None if lives_s > 70 else starts_s + lives_s
    name = f"worker-{number}"
    return member(protocol, name, starts_s + number / 1_000, ends_s=ends_s, leaves=leaves, pauses_s=pauses)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_page_tries_settings_that_the_group_can_have(protocol: str) -> None:
    log = recorded(dead(protocol), 150)
    report = answer(log, []).recorded.report
    assert report is not None
    tries = tries_for(report.rebalances[-1])
    assert len(answer(log, [parse_changes([setting]) for setting in tries]).tried) == len(tries) > 0


def test_table_names_tasks_and_epochs_of_a_streams_group() -> None:
    found = answer(recorded(dead(STREAMS), 150), [parse_changes(["streams.num.standby.replicas=1"])])
    lines = answer_text(found, Clock(UTC)).splitlines()
    assert "  without a copy of their state 3            0" in [line.rstrip() for line in lines]
    assert any(line.startswith("group epochs ") for line in lines)
    assert not any("partition" in line for line in lines)
