"""The state of a coordinator's replica."""

from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.service.status import NO_REPLICA


class ReplicaPhase(StrEnum):
    """SEEDING (it reads its seed), STANDBY (it follows the replica of another coordinator), FOLLOWING (it
    reads on to the end of the topic, or must not answer), ANSWERING, ENDED (it has ended, and the service
    starts another one).
    """

    SEEDING = "seeding"
    STANDBY = "standby"
    FOLLOWING = "following"
    ANSWERING = "answering"
    ENDED = "ended"


class ReplicaState(Struct, frozen=True, kw_only=True):
    """The replica as others see it.

    `phase` is one of PHASES: the phase of its report, or `off`. `reason` says why it does not answer.
    `answers`, `compared`, `differences` and `seedings` are since the start of the service. `lead_s` and
    `lead_bytes` are as in `streaming.replica.follower`. `alarm` is for the operator.
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
        """What it does, and why it does not answer."""
        return f"{self.phase}: {self.reason}" if self.reason else self.phase


NO_REPLICA_STATE = ReplicaState(phase=NO_REPLICA)
"""The coordinator runs without a replica."""


NOT_STARTED = ReplicaState(phase=ReplicaPhase.SEEDING, reason="no query has started yet")


PHASES = (NO_REPLICA_STATE.phase, *(phase.value for phase in ReplicaPhase))
