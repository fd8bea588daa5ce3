"""The readiness of `run` for clients, by the query, the replica, or another coordinator."""

import pytest

from cli.run_gateway import ALARM, REPLICA, coordinator_checks
from gateway.running import COORDINATOR
from kafka_why.contract.service import NO_REPLICA_STATE, PHASES, ReplicaState, ServicePhase, ServiceStatus
from kafka_why.metrics.http import CheckNote

NOT_READY = [phase for phase in ServicePhase if phase not in (ServicePhase.READY, ServicePhase.STANDBY)]


def status(phase: ServicePhase) -> ServiceStatus:
    return ServiceStatus(phase, "for a reason", 0)


@pytest.mark.parametrize("phase", [ServicePhase.READY, ServicePhase.STANDBY])
@pytest.mark.parametrize("replica", PHASES)
def test_coordinator_without_a_replica_is_ready_and_notes_it(phase: ServicePhase, replica: str) -> None:
    state = ReplicaState(phase=replica, reason="" if replica in ("off", "answering") else "why")
    assert coordinator_checks(status(phase), state) == {COORDINATOR: None, REPLICA: CheckNote(state.phrase)}


@pytest.mark.parametrize("phase", NOT_READY)
@pytest.mark.parametrize("replica", [phase for phase in PHASES if phase != "answering"])
def test_coordinator_with_neither_batches_nor_answers_is_not_ready(phase: ServicePhase, replica: str) -> None:
    found = coordinator_checks(status(phase), ReplicaState(phase=replica))
    assert found[COORDINATOR] == f"{phase}: for a reason"


@pytest.mark.parametrize("phase", [phase for phase in NOT_READY if phase is not ServicePhase.STOPPED])
def test_answering_replica_keeps_the_coordinator_ready_and_is_noted(phase: ServicePhase) -> None:
    found = coordinator_checks(status(phase), ReplicaState(phase="answering"))
    assert found[COORDINATOR] == CheckNote(f"{phase}: for a reason. The replica answers")


def test_stopped_coordinator_is_not_ready_even_if_its_replica_answers() -> None:
    stopped = ServiceStatus(ServicePhase.STOPPED, "the topics have another owner", 0)
    for state in (NO_REPLICA_STATE, ReplicaState(phase="answering")):
        assert coordinator_checks(stopped, state)[COORDINATOR] == "stopped: the topics have another owner"


def test_alarm_is_noted_and_does_not_fail_readiness() -> None:
    found = coordinator_checks(
        ServiceStatus(ServicePhase.READY, "", 0, alarm="the disk is full"), NO_REPLICA_STATE
    )
    assert found == {COORDINATOR: None, REPLICA: CheckNote("off"), ALARM: CheckNote("the disk is full")}
