"""The phase of a coordinator's process."""

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
    """`alarm` is a problem for the operator even if the coordinator is ready, None if there is none.

    `batch_id` is the last committed batch, None if unknown. The file has its value as of the last change.
    `replica` is what the replica does, and why it does not answer (`streaming.service.status`).
    """

    phase: ServicePhase
    reason: str
    since_ms: int
    batch_id: int = -1
    alarm: str | None = None
    replica: str = NO_REPLICA
