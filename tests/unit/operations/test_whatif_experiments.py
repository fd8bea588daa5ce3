"""A log through the closed loop: its own requests and answers if nothing changes, else known outcomes."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from checkpoints.codec import STATE_VERSION, encode_group
from checkpoints.sealed_file import ExportedGroup
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from kafka_why.contract.rocketmq.requests import ConnectionClosed
from kafka_why.why.model import CauseKind
from kafka_why.wording import Clock
from operations.replay.recording import (
    Line,
    RecordingFile,
    RecordingHeader,
    StartLine,
)
from operations.whatif.changes import UNCHANGED, parse_changes
from operations.whatif.clients import find_classic_clients
from operations.whatif.facts import ClientFleet, LogMoment, SentRequest
from operations.whatif.figures import RunFigures, measure
from operations.whatif.run import GroupLog, Run, WhatIfError, log_of, open_loop
from operations.whatif.text import answer, answer_text, simulate, summary
from operations.whatif.validation import MatchKind, validate
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.protocol import Outage, Received
from state.timeline import Row
from tests.harness.examples import examples
from tests.harness.fleets import GROUP, at, fleet, fleets, log_of_run, process, recorded, tried
from tests.harness.recordings import Lines

ROLLING = fleet(
    process("a", ends_s=30),
    process("b", 0.5, ends_s=50),
    process("c", 1, ends_s=70),
    process("a", 33, run=2),
    process("b", 53, run=2),
    process("c", 73, run=2),
)
PAUSE = fleet(process("a"), process("b", 0.5), process("c", 1, pauses_s=[(30, 50)]))


DEAD = fleet(process("a"), process("b", 0.5, ends_s=30, leaves=False))
SLOW = fleet(process("a"), process("b", 1, poll_ms=20_000, stalls_s=[(15, 50)]))
JOINED = fleet(process("a"), process("b", 0.5), process("c", 30))


@pytest.mark.parametrize(
    ("made", "setting", "rebalances", "is_so"),
    [
        pytest.param(
            ROLLING,
            "group.instance.id=client.id",
            (7, 1),
            lambda was, now: now.stood_still_ms < was.stood_still_ms and now.moved == 0 < was.moved,
            id="KIP-345: static members do not rebalance when they are started again",
        ),
        pytest.param(
            # The price: nobody consumes the partitions of the member that pauses until it comes back.
            PAUSE,
            "session.timeout.ms=30000",
            (3, 1),
            lambda was, now: now.longest_ms > was.longest_ms,
            id="a session timeout above the pause keeps the member",
        ),
        pytest.param(
            # The table must not hide the other side of a long session timeout.
            DEAD,
            "session.timeout.ms=40000",
            (2, 2),
            lambda was, now: (
                29_000 < now.longest_ms - was.longest_ms < 31_000 and now.partition_ms > was.partition_ms
            ),
            id="a longer session timeout finds a dead member later",
        ),
        pytest.param(
            SLOW,
            "max.poll.interval.ms=60000",
            (3, 1),
            lambda was, now: now.not_stable_ms < was.not_stable_ms,
            id="a longer poll interval keeps a slow member",
        ),
        pytest.param(
            fleet(process("a"), process("b", 1)),
            "group.initial.rebalance.delay.ms=0",
            (1, 2),
            lambda was, now: now.not_stable_ms < was.not_stable_ms,
            id="the initial delay is the coordinator's",
        ),
        pytest.param(
            # Members keep what they keep. The two partitions that move wait until the new member has learned
            # of the second rebalance, from its heartbeat after 3 s.
            JOINED,
            "partition.assignment.strategy=cooperative-sticky",
            (2, 3),
            lambda was, now: (
                now.by_client["a"] < was.by_client["a"]
                and 5_900 < now.partition_ms - was.partition_ms < 6_000
            ),
            id="a cooperative assignor hands over in two rebalances",
        ),
    ],
)
def test_experiment_has_its_known_outcome(
    made: ClientFleet,
    setting: str,
    rebalances: tuple[int, int],
    is_so: Callable[[RunFigures, RunFigures], bool],
) -> None:
    was, now = tried(recorded(made, 100), setting)
    assert (was.rebalances, now.rebalances) == rebalances
    assert is_so(was, now)


def test_experiment_reports_clients_refused_for_their_session_timeout() -> None:
    found = answer(recorded(PAUSE, 100), [parse_changes(["session.timeout.ms=3000"])])
    assert found.tried[0].refused == ["a", "b", "c"]
    assert found.tried[0].rebalances == 0
    assert "the coordinator refuses a, b, c" in answer_text(found, Clock(UTC))


def test_whatif_compares_nothing_if_it_cannot_reproduce_the_log() -> None:
    """The leader's `range` is not Kafka's: it exchanges what a and b get, so other partitions move."""
    log = recorded(PAUSE, 100)
    rows = []
    for row in log.rows:
        request = row.request
        if isinstance(request, SyncGroup) and request.assignments and request.generation_id == 2:
            given = request.assignments
            pairs = zip(given, reversed(given), strict=True)
            swapped = [replace(mine, assignment=theirs.assignment) for mine, theirs in pairs]
            row = replace(row, request=replace(request, assignments=swapped))
        rows.append(row)
    odd = GroupLog(GROUP, rows, log.configs, log.until_ms)
    found = answer(odd, [parse_changes(["session.timeout.ms=30000"])])
    assert found.tried == []
    text = answer_text(found, Clock(UTC))
    assert "does not reproduce what happened" in text
    assert re.search(r"\d+ partitions moved, in the simulation \d+", text)
    assert "session.timeout.ms=30000" not in text


def test_validation_reports_the_size_of_each_difference() -> None:
    """What another session timeout makes of the log is no reproduction of it."""
    log = recorded(PAUSE, 100)
    found, run = find_classic_clients(log)
    was = measure("was", found, run)
    now = measure("now", found, simulate(found, log, parse_changes(["session.timeout.ms=30000"])))
    differs = validate(was, now)
    assert [pair.match for pair in differs.pairs] == [MatchKind.MATCHED, MatchKind.MISSED, MatchKind.MISSED]
    assert "of 3 rebalances the simulation misses 2 and has 0 more (0 each are allowed)" in differs.objections
    turned = validate(now, was)
    assert [pair.match for pair in turned.pairs] == [
        MatchKind.MATCHED,
        MatchKind.ADDITIONAL,
        MatchKind.ADDITIONAL,
    ]
    assert turned.objections


SETTINGS = (
    "session.timeout.ms=6000",
    "session.timeout.ms=45000",
    "heartbeat.interval.ms=500",
    "max.poll.interval.ms=5000",
    "group.instance.id=client.id",
    "group.initial.rebalance.delay.ms=0",
    "group.max.size=2",
    "partition.assignment.strategy=cooperative-sticky",
    "partition.assignment.strategy=uniform",
    "partition.assignment.strategy=coordinator:range",
)


@examples(12)
@given(fleets(), st.sets(st.sampled_from(SETTINGS), min_size=1, max_size=3))
def test_every_experiment_on_every_fleet_has_an_outcome(made: ClientFleet, settings: set[str]) -> None:
    """No client is stopped for longer than it runs, and a second run gives the same answer."""
    log = recorded(made, until_s=100)
    experiments = [parse_changes(sorted(settings))]
    found = answer(log, experiments)
    assert found.validation.objections == []
    now = found.tried[0]
    runs_ms = Counter[str]()
    for run in found.fleet.processes:
        runs_ms[run.client] += (run.ends.at_ms if run.ends else log.until_ms) - run.starts.moment.at_ms
    assert all(0 <= still_ms <= runs_ms[client] for client, still_ms in now.by_client.items())
    assert 0 <= now.longest_ms <= now.partition_ms or now.partitions == 0
    assert summary(answer(log, experiments)) == summary(found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("session.timeout", "not NAME=VALUE"),
        ("session.timeout.ms=soon", "must be a whole number"),
        ("session.timeout.ms=\N{ARABIC-INDIC DIGIT THREE}", "must be a whole number"),
        (f"session.timeout.ms={'9' * 5_000}", r"not '9+\.\.\.'"),
        ("group.max.size=1_0", "must be a whole number"),
        ("no.such.setting=1", "unknown setting 'no.such.setting'"),
        ("partition.assignment.strategy=best", "unknown assignor 'best'"),
        ("group.instance.id=a", "can only be client.id"),
        ("session.timeout.ms=6000 heartbeat.interval.ms=6000", "must be below session"),
    ],
)
def test_invalid_experiment_setting_is_refused(settings: str, message: str) -> None:
    with pytest.raises(WhatIfError, match=message):
        parse_changes(settings.split())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "consumer.session.timeout.ms=45000",
            "consumer groups, but the group is one of the classic protocol",
        ),
        ("group.share.max.size=5", "is a setting of share groups"),
    ],
)
def test_setting_of_another_protocol_is_refused(setting: str, message: str) -> None:
    with pytest.raises(WhatIfError, match=message):
        answer(recorded(fleet(process("a")), 20), [parse_changes([setting])])


def test_whatif_refuses_a_group_without_consumers() -> None:
    log = recorded(fleet(process("a")), 20)
    (first, *_) = log.rows
    assert isinstance(first.request, JoinGroup)
    connect = replace(first, request=replace(first.request, protocol_type="connect"))
    with pytest.raises(WhatIfError, match="protocol type is 'connect'"):
        answer(GroupLog(GROUP, [connect], Configs(CoordinatorConfig()), at(20)), [])


RECORDING = RecordingFile(Path(__file__).parents[2] / "data" / "demo_recording.zst")


def recording(header: RecordingHeader, first: Iterable[Line] = ()) -> Lines:
    return Lines(header, [*first, *RECORDING.log(), *RECORDING.outputs()])


def test_simulation_reproduces_recorded_clients() -> None:
    """Real processes of kafka-python, a kill of a consumer, and two kills of the coordinator."""
    validation = answer(log_of(RECORDING, "demo"), []).validation
    assert [pair.match for pair in validation.pairs] == [MatchKind.MATCHED] * 6
    assert validation.worst_ms() == 0
    assert validation.objections == []


def test_whatif_refuses_a_log_without_its_beginning() -> None:
    """Without the first requests the clients cannot be found."""
    header = replace(RECORDING.header, begins={0: 10_000}, is_first=[])
    with pytest.raises(WhatIfError, match="the beginning of the log of group demo is gone"):
        log_of(recording(header), "demo")


def test_whatif_refuses_a_recording_that_begins_with_a_state() -> None:
    group = ClassicGroup("demo", "group-coordinator-requests-0-1")
    start = StartLine(ExportedGroup("demo", STATE_VERSION, encode_group(group, None).group))
    with pytest.raises(WhatIfError, match="begins while group demo already exists"):
        log_of(recording(replace(RECORDING.header, starts_from="an export"), [start]), "demo")


def test_whatif_refuses_a_rocketmq_group() -> None:
    closed = ConnectionClosed(group_id="g", connection="c1")
    log = GroupLog("g", [Row(1_000, "requests-0-0", closed)], Configs(CoordinatorConfig()), 2_000)
    with pytest.raises(WhatIfError, match="is a request of RocketMQ"):
        open_loop(log)


def said(run: Run) -> Iterator[tuple[object, ...]]:
    """Yield each step: its time, its request or deadline, and the answers."""
    for step in run.steps:
        event = step.event.request if isinstance(step.event, Received) else step.event
        yield step.at_ms, event, [reply.response for reply in step.effects.replies]


def reproduced(log: GroupLog) -> ClientFleet:
    """Find the clients of the log, run them, and compare every step. Return the clients."""
    found, run = find_classic_clients(log)
    assert list(said(simulate(found, log, UNCHANGED))) == list(said(run))
    return found


@examples(30)
@given(fleets())
def test_simulation_reproduces_any_fleet(made: ClientFleet) -> None:
    """Clients that start, stop, die, pause and are started again, dynamic and static, eager and
    cooperative.
    """
    reproduced(recorded(made, until_s=150))


def test_simulated_member_rejoins_after_removal_by_an_operator() -> None:
    """The removal is a fact. It names the member by its id, which is another in each run."""
    removal = LeaveGroup(
        group_id=GROUP,
        correlation_id="",
        reply_partition=0,
        api_version=5,
        client_id="admin",
        members=[LeavingMember("b's id in the log", None, "removed by an operator")],
    )
    made = fleet(process("a"), process("b", 1))
    made = dataclasses.replace(
        made,
        other_requests=[SentRequest(LogMoment(at(20)), "requests-0-9", removal)],
        removals={"requests-0-9": ["b"]},
    )
    log = recorded(made, 60)
    found = reproduced(log)
    assert list(found.removals.values()) == [["b"]]
    tried = answer(log, [parse_changes(["group.initial.rebalance.delay.ms=0"])]).tried[0]
    assert [cause.rebalances for cause in tried.causes if cause.kind is CauseKind.MEMBER_LEFT] == [1]


def test_simulation_keeps_recorded_outages() -> None:
    """Sessions start again after an outage, in the simulation as in the log."""
    made = fleet(process("a"), process("b", 1))
    outages = [Outage(at(20), at(45))]
    log = GroupLog(made.group_id, [], recorded(made, 1).configs, at(100), outages)
    reproduced(log_of_run(simulate(made, log, UNCHANGED), log))


def test_simulation_applies_recorded_settings_at_their_times() -> None:
    """The second process finds the group empty. A setting of the experiment is in force all the time."""
    made = fleet(process("a", ends_s=10), process("b", 30))
    slow, fast = (CoordinatorConfig(group_initial_rebalance_delay_ms=ms) for ms in (3_000, 0))
    log = GroupLog(made.group_id, [], Configs(slow, [ConfigChange(at(20), fast)]), at(60))
    reproduced(log_of_run(simulate(made, log, UNCHANGED), log))
    assert [ms >= 3_000 for ms in join_phases_ms(simulate(made, log, UNCHANGED))] == [True, False]
    as_before = parse_changes(["group.initial.rebalance.delay.ms=3000"])
    assert [ms >= 3_000 for ms in join_phases_ms(simulate(made, log, as_before))] == [True, True]


def join_phases_ms(run: Run) -> list[int]:
    """Return how long each generation waited for members after the last one had joined."""
    joined_ms, waited_ms = 0, []
    for entry in run.history():
        if entry.type is EntryType.MEMBER_ADDED:
            joined_ms = entry.at_ms
        elif entry.type is EntryType.COMPLETING_REBALANCE:
            waited_ms.append(entry.at_ms - joined_ms)
    return waited_ms
