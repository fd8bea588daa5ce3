"""The status that a coordinator's process reports: its phase, its replica, and its open work."""

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

NO_REPLICA = "off"


class ServicePhase(StrEnum):
    """The phase of a coordinator's process. STANDBY: it waits until the coordinator that owns the topics
    ends. READY: batches are being committed. RESTARTING: the query failed and is being restarted. FAILING:
    the same batch fails repeatedly.
    """

    STARTING = "starting"
    STANDBY = "standby"
    READY = "ready"
    RESTARTING = "restarting"
    FAILING = "failing"
    STOPPED = "stopped"


class ServiceStatus(Struct, frozen=True):
    """The status of a service. `alarm` is a problem that an operator has to solve, or None. A coordinator can
    have an alarm even if it is ready.

    `batch_id` is the last committed batch, or -1 if unknown. In the status file it is the last committed
    batch at the last change of the status. `replica` is the replica's phase and, if it does not answer, the
    reason (`streaming.service.status`).
    """

    phase: ServicePhase
    reason: str
    since_ms: int
    batch_id: int = -1
    alarm: str | None = None
    replica: str = NO_REPLICA


class ReplicaPhase(StrEnum):
    """The phase of a replica. SEEDING: it reads its seed. STANDBY: it follows the replica of another
    coordinator. FOLLOWING: it catches up with the topic, or must not answer. ENDED: it has ended, and the
    service starts another replica.
    """

    SEEDING = "seeding"
    STANDBY = "standby"
    FOLLOWING = "following"
    ANSWERING = "answering"
    ENDED = "ended"


class ReplicaState(Struct, frozen=True, kw_only=True):
    """The reported state of the replica. `phase` is one of PHASES: a ReplicaPhase, or `off` without a
    replica. `reason` is why the replica does not answer. `answers`, `compared`, `differences` and
    `seedings` count from the start of the service. `lead_s` and `lead_bytes` are as in
    `streaming.replica.follower`. `alarm` is a problem that an operator has to solve, or None.
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
"""The state without a replica."""


NOT_STARTED = ReplicaState(phase=ReplicaPhase.SEEDING, reason="no query has started yet")


PHASES = (NO_REPLICA_STATE.phase, *(phase.value for phase in ReplicaPhase))


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """A summary of the tasks for the share coordinator. `tasks` are open, with `partitions`, and the oldest
    has an age of `oldest_age_ms`. `initialized`, `adopted` and `deleted` count the partitions that are done.
    `failures` are by error code. The outcomes of `reported_tasks` tasks were appended. `reported_ms` is the
    sum of the times that these tasks took.
    """

    tasks: int = 0
    partitions: int = 0
    oldest_age_ms: int = 0
    initialized: int = 0
    adopted: int = 0
    deleted: int = 0
    failures: tuple[tuple[str, int], ...] = ()
    reported_tasks: int = 0
    reported_ms: int = 0
    alarm: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionsSummary:
    """A summary of pending transactions. `pending` entries are open, and the oldest has an age of
    `oldest_age_ms`. `lag` is the number of markers that are not read yet. `decided` counts ended entries by
    outcome.
    """

    pending: int = 0
    oldest_age_ms: int = 0
    lag: int = 0
    decided: tuple[tuple[str, int], ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def alarm(self) -> str | None:
        """The first alarm and the number of alarms, or None if there is no alarm."""
        if len(self.alarms) < 2:
            return "".join(self.alarms) or None
        return f"{self.alarms[0]} ({len(self.alarms)} such transactions)"
