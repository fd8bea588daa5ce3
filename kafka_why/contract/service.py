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
    reason: str
    since_ms: int
    # Last committed batch, or -1 if unknown; in the status file, as of the last change of the status.
    batch_id: int = -1
    # A problem that an operator has to solve, or None; a coordinator can be ready and have one.
    alarm: str | None = None
    replica: str = NO_REPLICA  # its phase, with the reason if it does not answer (`streaming.service.status`)


class ReplicaPhase(StrEnum):
    """The phase of a replica."""

    SEEDING = "seeding"  # it reads its seed
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
    lead_s: float = 0.0  # as `lead_bytes`, see `streaming.replica.follower`
    lead_bytes: int = 0
    answers: int = 0
    compared: int = 0
    differences: int = 0
    seedings: int = 0
    groups: int = 0
    alarm: str | None = None  # a problem that an operator has to solve, or None

    @property
    def is_answering(self) -> bool:
        return self.phase == ReplicaPhase.ANSWERING

    @property
    def phrase(self) -> str:
        """The phase, with the reason if the replica does not answer."""
        return f"{self.phase}: {self.reason}" if self.reason else self.phase


NO_REPLICA_STATE = ReplicaState(phase=NO_REPLICA)
"""The state without a replica."""


NOT_STARTED = ReplicaState(phase=ReplicaPhase.SEEDING, reason="no query has started yet")


PHASES = (NO_REPLICA_STATE.phase, *(phase.value for phase in ReplicaPhase))


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """A summary of the tasks for the share coordinator."""

    tasks: int = 0  # open ones
    partitions: int = 0  # of the open tasks
    oldest_age_ms: int = 0
    initialized: int = 0  # partitions, as are `adopted` and `deleted`
    adopted: int = 0
    deleted: int = 0
    failures: tuple[tuple[str, int], ...] = ()  # by error code
    reported_tasks: int = 0  # whose outcome was appended
    reported_ms: int = 0  # sum of the times that these tasks took
    alarm: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionsSummary:
    """A summary of pending transactions."""

    pending: int = 0  # open entries
    oldest_age_ms: int = 0
    lag: int = 0  # markers that are not read yet
    decided: tuple[tuple[str, int], ...] = ()  # ended entries by outcome
    alarms: tuple[str, ...] = ()

    @property
    def alarm(self) -> str | None:
        """The first alarm, with the number of alarms, or None."""
        if len(self.alarms) < 2:
            return "".join(self.alarms) or None
        return f"{self.alarms[0]} ({len(self.alarms)} such transactions)"
