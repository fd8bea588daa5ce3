"""The state that a coordinator's process reports: its phase, its replica, its open work."""

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

NO_REPLICA = "off"


class ServicePhase(StrEnum):
    """STARTING, STANDBY (another coordinator owns the topics, and this one waits until it ends), READY
    (batches are being committed), RESTARTING (the query failed and is being restarted), FAILING (the same
    batch fails again and again), STOPPED."""

    STARTING = "starting"
    STANDBY = "standby"
    READY = "ready"
    RESTARTING = "restarting"
    FAILING = "failing"
    STOPPED = "stopped"


class ServiceStatus(Struct, frozen=True):
    """The status of a service. `alarm` is a problem for the operator, even if the coordinator is ready, or
    None.

    `batch_id` is the last committed batch, or None if unknown. The status file has its value as of the last
    change. `replica` is the replica's phase and, if it does not answer, the reason
    (`streaming.service.status`).
    """

    phase: ServicePhase
    reason: str
    since_ms: int
    batch_id: int = -1
    alarm: str | None = None
    replica: str = NO_REPLICA


class ReplicaPhase(StrEnum):
    """SEEDING (it reads its seed), STANDBY (it follows the replica of another coordinator), FOLLOWING (it
    catches up with the topic, or must not answer), ANSWERING, ENDED (it has ended, and the service starts
    another one).
    """

    SEEDING = "seeding"
    STANDBY = "standby"
    FOLLOWING = "following"
    ANSWERING = "answering"
    ENDED = "ended"


class ReplicaState(Struct, frozen=True, kw_only=True):
    """The reported state of the replica. `phase` is one of PHASES: a ReplicaPhase, or `off` without a
    replica. `reason` says why it does not answer. `answers`, `compared`, `differences` and `seedings` are
    since the start of the service. `lead_s` and `lead_bytes` are as in `streaming.replica.follower`. `alarm`
    is for the operator.
    """

    phase: str
    reason: str = ""
    lag_records: int = 0
    lag_ms: int = 0
    lead_s: float = 0.0
    lead_bytes: int = 0
    answers: int = 0
    compared: int = 0
    differences: int = 0
    seedings: int = 0
    groups: int = 0
    alarm: str | None = None

    @property
    def is_answering(self) -> bool:
        return self.phase == ReplicaPhase.ANSWERING

    @property
    def phrase(self) -> str:
        """The phase and, if it does not answer, the reason."""
        return f"{self.phase}: {self.reason}" if self.reason else self.phase


NO_REPLICA_STATE = ReplicaState(phase=NO_REPLICA)
"""The coordinator runs without a replica."""


NOT_STARTED = ReplicaState(phase=ReplicaPhase.SEEDING, reason="no query has started yet")


PHASES = (NO_REPLICA_STATE.phase, *(phase.value for phase in ReplicaPhase))


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """Figures of the share coordinator's tasks for operators: the open tasks with their partitions, the age
    of the oldest in ms, the partitions done so far, the failures by error code, the tasks whose outcomes were
    appended, the sum in ms of the times that these took, and the alarm.
    """

    tasks: int = 0
    partitions: int = 0
    oldest_age_ms: int = 0
    initialized: int = 0
    adopted: int = 0
    deleted: int = 0
    failures: tuple[tuple[str, int], ...] = ()
    told_tasks: int = 0
    told_ms: int = 0
    alarm: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionsSummary:
    """Figures of pending transactions for operators: the open entries, the age of the oldest in ms, the
    markers not read yet, the entries decided so far by outcome, and the alarms.
    """

    pending: int = 0
    oldest_age_ms: int = 0
    lag: int = 0
    decided: tuple[tuple[str, int], ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def alarm(self) -> str | None:
        """The first alarm and the number of the others, or None if there is no alarm."""
        if len(self.alarms) < 2:
            return "".join(self.alarms) or None
        return f"{self.alarms[0]} ({len(self.alarms)} such transactions)"
