"""The replica as operators see it, and the thread that keeps it in the status."""

from collections.abc import Callable

import structlog

from kafka_why.background_thread import BackgroundThread
from kafka_why.contract.service.replica import ReplicaState
from streaming.service.status import StatusBoard

INTERVAL_S = 0.2

log = structlog.get_logger()


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
