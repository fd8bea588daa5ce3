"""When `run` is ready for clients: because of the query, of the replica, or of another coordinator."""

import pytest

from cli.run_gateway import ALARM, REPLICA, coordinator_checks
from gateway.health import COORDINATOR
from insight.metrics.http import Note
from streaming.service.replica.state import OFF, PHASES, ReplicaState
from streaming.service.status import Phase, Status

NOT_READY = [phase for phase in Phase if phase not in (Phase.READY, Phase.STANDBY)]


def status(phase: Phase) -> Status:
    return Status(phase, "for a reason", 0)


@pytest.mark.parametrize("phase", [Phase.READY, Phase.STANDBY])
@pytest.mark.parametrize("replica", PHASES)
def test_it_is_ready_without_a_replica_and_says_so(phase: Phase, replica: str) -> None:
    state = ReplicaState(phase=replica, reason="" if replica in ("off", "answering") else "why")
    assert coordinator_checks(status(phase), state) == {COORDINATOR: None, REPLICA: Note(state.phrase)}


@pytest.mark.parametrize("phase", NOT_READY)
@pytest.mark.parametrize("replica", [phase for phase in PHASES if phase != "answering"])
def test_without_batches_and_early_answers_it_is_not_ready(phase: Phase, replica: str) -> None:
    found = coordinator_checks(status(phase), ReplicaState(phase=replica))
    assert found[COORDINATOR] == f"{phase}: for a reason"


@pytest.mark.parametrize("phase", [phase for phase in NOT_READY if phase is not Phase.STOPPED])
def test_a_replica_that_answers_keeps_it_ready_and_the_reason_is_told(phase: Phase) -> None:
    found = coordinator_checks(status(phase), ReplicaState(phase="answering"))
    assert found[COORDINATOR] == Note(f"{phase}: for a reason. The replica answers")


def test_a_stopped_coordinator_is_not_ready_whatever_its_replica_says() -> None:
    stopped = Status(Phase.STOPPED, "the topics have another owner", 0)
    for state in (OFF, ReplicaState(phase="answering")):
        assert coordinator_checks(stopped, state)[COORDINATOR] == "stopped: the topics have another owner"


def test_an_alarm_is_told_and_does_not_fail() -> None:
    found = coordinator_checks(Status(Phase.READY, "", 0, alarm="the disk is full"), OFF)
    assert found == {COORDINATOR: None, REPLICA: Note("off"), ALARM: Note("the disk is full")}
