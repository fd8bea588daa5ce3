"""A log through the closed loop with nothing changed: each request and each answer is that of the log."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import LeaveGroup, LeavingMember
from kafka_why.why.model import CauseKind
from operations.whatif.changes import UNCHANGED, parse_changes
from operations.whatif.clients import derive
from operations.whatif.facts import ClientFleet, LogMoment, SentRequest
from operations.whatif.run import GroupLog, Run
from operations.whatif.text import answer, simulate
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.protocol import Outage, Received
from tests.harness.examples import examples
from tests.harness.fleets import GROUP, at, fleet, fleets, log_of, process, recorded


def said(run: Run) -> Iterator[tuple[object, ...]]:
    """Yield each step: its time, its request or deadline, and the answers."""
    for step in run.steps:
        event = step.event.request if isinstance(step.event, Received) else step.event
        yield step.at_ms, event, [reply.response for reply in step.effects.replies]


def reproduced(log: GroupLog) -> ClientFleet:
    """Find the clients of the log, run them, and compare every step. Return the clients."""
    found, run = derive(log)
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
    made = replace(
        made,
        outside=[SentRequest(LogMoment(at(20)), "requests-0-9", removal)],
        removals={"requests-0-9": ["b"]},
    )
    log = recorded(made, 60)
    found = reproduced(log)
    assert list(found.removals.values()) == [["b"]]
    tried = answer(log, [parse_changes(["group.initial.rebalance.delay.ms=0"])]).tried[0].outcome
    assert [cause.rebalances for cause in tried.causes if cause.kind is CauseKind.MEMBER_LEFT] == [1]


def test_simulation_keeps_recorded_outages() -> None:
    """Sessions begin anew after it, in the simulation as in the log."""
    made = fleet(process("a"), process("b", 1))
    outages = [Outage(at(20), at(45))]
    log = GroupLog(made.group_id, [], recorded(made, 1).configs, at(100), outages)
    reproduced(log_of(simulate(made, log, UNCHANGED), log))


def test_simulation_applies_recorded_settings_at_their_times() -> None:
    """The second process finds the group empty. A setting of the experiment is in force all the time."""
    made = fleet(process("a", ends_s=10), process("b", 30))
    slow, fast = (CoordinatorConfig(group_initial_rebalance_delay_ms=ms) for ms in (3_000, 0))
    log = GroupLog(made.group_id, [], Configs(slow, [ConfigChange(at(20), fast)]), at(60))
    reproduced(log_of(simulate(made, log, UNCHANGED), log))
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
