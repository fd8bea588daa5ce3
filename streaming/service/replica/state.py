"""The replica as operators see it, and the thread that keeps it in the status."""

from collections.abc import Callable

import structlog
from msgspec import Struct

from streaming.replica.pipes import Phase
from streaming.service.background import BackgroundThread
from streaming.service.status import NO_REPLICA, StatusBoard

INTERVAL_S = 0.2

log = structlog.get_logger()


class ReplicaState(Struct, frozen=True, kw_only=True):
    """The replica as others see it.

    `phase` is one of PHASES: the phase of its report, or `off`. `reason` says why it does not answer.
    `answers`, `compared`, `differences` and `seedings` are since the start of the service. `lead_s` and
    `lead_bytes` are as in `streaming.replica.lead`. `alarm` is for the operator.
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
        return self.phase == Phase.ANSWERING

    @property
    def phrase(self) -> str:
        """What it does, and why it does not answer."""
        return f"{self.phase}: {self.reason}" if self.reason else self.phase


OFF = ReplicaState(phase=NO_REPLICA)
"""The coordinator runs without a replica."""
NOT_STARTED = ReplicaState(phase=Phase.SEEDING, reason="no query has started yet")
PHASES = (OFF.phase, *(phase.value for phase in Phase))


class ReplicaWatch(BackgroundThread):
    """Keeps the replica's phrase in the status, and logs each new phase.

    A thread of its own, because the other ones wait: for Spark to start, for the topics to be free.
    `is_stopping` says whether the service stops in order.
    """

    def __init__(
        self,
        state: Callable[[], ReplicaState],
        status: StatusBoard,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._state = state
        self._is_stopping = is_stopping
        self._status = status
        super().__init__("replica-watch")

    def _run(self) -> None:
        phase = ""
        while not self._stopped.is_set():
            state = self._state()
            self._status.set_replica(state.phrase)
            if state.phase != phase:
                phase = state.phase
                # The replica's end is a part of the service's, of which others speak.
                if phase != "ended" or not self._is_stopping():
                    log.info("the replica has another phase", phase=phase, reason=state.reason)
            self._stopped.wait(INTERVAL_S)
