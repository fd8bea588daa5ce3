"""The status that a coordinator's process reports: its phase, its replica, and its open work."""

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

NO_REPLICA = "off"


class ServicePhase(StrEnum):
    """The phase of a coordinator's process."""

    STARTING = "starting"
    STANDBY = "standby"  # it waits until the coordinator that owns the topics ends
    READY = "ready"  # batches are being committed
    RESTARTING = "restarting"  # the query failed and is being restarted
    FAILING = "failing"  # the same batch fails repeatedly
    STOPPED = "stopped"


class ServiceStatus(Struct, frozen=True):
    """The status of a service."""

    phase: ServicePhase
    reason: str  # for the phase
    since_ms: int  # since when the service is in the phase
    # Last committed batch, or -1 if unknown. In the status file, it is as of the last change of the status.
    batch_id: int = -1
    # A problem that an operator has to solve, or None; a coordinator can be ready and have one.
    alarm: str | None = None
    # Phase of the replica, with the reason if it does not answer (`streaming.service.status`).
    replica: str = NO_REPLICA


class ReplicaPhase(StrEnum):
    """The phase of a replica, which answers requests before the Spark query."""

    SEEDING = "seeding"  # it reads its seed, the query's state after a batch
    STANDBY = "standby"  # it follows the replica of another coordinator
    FOLLOWING = "following"  # it catches up with the topic, or must not answer
    ANSWERING = "answering"
    ENDED = "ended"  # the service starts another replica


class ReplicaState(Struct, frozen=True, kw_only=True):
    """The reported state of the replica. Counts are from the start of the service."""

    phase: str  # one of PHASES: a ReplicaPhase, or `off` without a replica
    reason: str = ""  # why the replica does not answer
    lag_records: int = 0
    lag_ms: int = 0
    lead_s: float = 0.0  # time since the query last committed a batch
    lead_bytes: int = 0  # size of the early answers that the query has not given yet
    answers: int = 0  # early answers appended
    compared: int = 0  # early answers that were compared with the query's
    differences: int = 0  # early answers that differed from the query's
    seedings: int = 0  # replicas that were started from the query's state
    groups: int = 0  # groups in the replica's memory
    alarm: str | None = None  # a problem that an operator has to solve, or None

    @property
    def is_answering(self) -> bool:
        """True if the replica answers requests."""
        return self.phase == ReplicaPhase.ANSWERING

    @property
    def phrase(self) -> str:
        """The phase, with the reason if the replica does not answer."""
        return f"{self.phase}: {self.reason}" if self.reason else self.phase


NO_REPLICA_STATE = ReplicaState(phase=NO_REPLICA)
"""The state without a replica."""


NOT_STARTED = ReplicaState(phase=ReplicaPhase.SEEDING, reason="no query has started yet")
"""The state of a replica before the first query."""


PHASES = (NO_REPLICA_STATE.phase, *(phase.value for phase in ReplicaPhase))


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """A summary of the tasks for the share coordinator."""

    tasks: int = 0  # number of open tasks
    partitions: int = 0  # number of partitions in the open tasks
    oldest_age_ms: int = 0  # age of the oldest open task
    initialized: int = 0  # number of partitions
    adopted: int = 0  # number of partitions whose existing state has a later state epoch
    deleted: int = 0  # number of partitions
    failures: tuple[tuple[str, int], ...] = ()  # error codes, each with the number of failures
    reported_tasks: int = 0  # number of tasks whose outcome was appended
    reported_ms: int = 0  # sum of the times that these tasks took
    alarm: str | None = None  # a problem that an operator has to solve, or None


@dataclass(frozen=True, slots=True)
class TransactionsSummary:
    """A summary of pending transactions."""

    pending: int = 0  # number of TxnOffsetCommits whose offsets are pending
    oldest_age_ms: int = 0  # age of the oldest of them
    lag: int = 0  # records of the markers topic that are not read yet
    decided: tuple[tuple[str, int], ...] = ()  # number of TxnOffsetCommits no longer pending, by outcome
    alarms: tuple[str, ...] = ()  # problems that an operator has to solve

    @property
    def alarm(self) -> str | None:
        """The first alarm, with the number of alarms, or None."""
        if not self.alarms:
            return None
        if len(self.alarms) == 1:
            return self.alarms[0]
        return f"{self.alarms[0]} ({len(self.alarms)} such transactions)"
