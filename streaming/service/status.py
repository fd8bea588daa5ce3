"""The coordinator's status, in memory and as a small file for other processes."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from msgspec import structs

from kafka_why.contract.service import NO_REPLICA, ReplicaState, ServicePhase, ServiceStatus
from kafka_why.lifetimes import BackgroundThread
from kafka_why.local_files import make_private_folder

log = structlog.get_logger()


class StatusBoard:
    """The current status. Every change is written to `path`. Safe for threads.

    No call raises if the file cannot be written. On a full disk the status is written over the old one, which
    needs no space. If that fails too, the file is removed, because an old status misleads. The next call with
    enough space writes the missing status.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_written = True  # the file has the current phase, alarm and phrase about the replica
        self._changed = threading.Condition()
        self.current = ServiceStatus(ServicePhase.STARTING, "not started", _now_ms())

    def enter(self, phase: ServicePhase, reason: str, *, batch_id: int | None = None) -> None:
        """Move to a phase with its reason. `batch_id` is the last committed batch, or None to leave it as it
        is.
        """
        with self._changed:
            old = self.current
            last_batch_id = old.batch_id if batch_id is None else batch_id
            # No alarm or replica outlives the service: nothing could clear it later.
            alarm, replica = (None, NO_REPLICA) if phase is ServicePhase.STOPPED else (old.alarm, old.replica)
            self._publish(ServiceStatus(phase, reason, _now_ms(), last_batch_id, alarm, replica))

    def batch_committed(self, batch_id: int) -> None:
        """Enter READY from any phase, because a batch was committed."""
        with self._changed:
            old = self.current
            if batch_id <= old.batch_id or old.phase is ServicePhase.STOPPED:
                return  # a late call: the phase has changed since the batch
            if old.phase is ServicePhase.READY:
                # The file is not written for each batch.
                self.current = structs.replace(old, batch_id=batch_id)
                self._changed.notify_all()
            else:
                reason = "batches are being committed"
                self._publish(
                    ServiceStatus(ServicePhase.READY, reason, _now_ms(), batch_id, old.alarm, old.replica)
                )

    def set_alarm(self, alarm: str | None) -> None:
        """Set the alarm, or clear it with None. A stopped coordinator has no alarm."""
        with self._changed:
            self._publish_if_changed(structs.replace(self.current, alarm=alarm))

    def set_replica(self, replica: str) -> None:
        """Set the phrase that describes the replica's state. A stopped coordinator has none."""
        with self._changed:
            self._publish_if_changed(structs.replace(self.current, replica=replica))

    def wait_for(self, *phases: ServicePhase, timeout_s: float | None = None) -> bool:
        """Wait until the phase is one of these. Return False after the timeout."""
        return self.wait_until(lambda status: status.phase in phases, timeout_s)

    def wait_until(self, holds: Callable[[ServiceStatus], bool], timeout_s: float | None = None) -> bool:
        """Wait until the condition holds. Return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self.current), timeout_s)

    def _publish_if_changed(self, status: ServiceStatus) -> None:
        """Publish the status if it is new or was not written, unless the coordinator is stopped."""
        is_stopped = self.current.phase is ServicePhase.STOPPED
        if not is_stopped and (status != self.current or not self._is_written):
            self._publish(status)

    def _publish(self, status: ServiceStatus) -> None:
        """Make this the current status, and write it. The caller holds the lock."""
        self.current = status
        error = _write(self._path, msgspec.json.encode(status))
        if error is not None and self._is_written:
            log.error("the status cannot be written", path=str(self._path), error=str(error))
        self._is_written = error is None
        self._changed.notify_all()


def _write(path: Path, content: bytes) -> OSError | None:
    """Write a file atomically, or else over the old one. Return an error if both fail, else None."""
    temporary = path.with_suffix(".new")
    try:
        make_private_folder(path.parent)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        return None if _overwrite(path, content) else error
    return None


def _overwrite(path: Path, content: bytes) -> bool:
    """Overwrite a file, or else remove it. Return True if it was overwritten."""
    try:
        # This takes no space on most file systems.
        with path.open("r+b", buffering=0) as file:
            padded = content.ljust(os.fstat(file.fileno()).st_size)  # JSON may end with spaces
            if file.write(padded) == len(padded):
                return True
    except OSError:
        pass
    with suppress(OSError):
        path.unlink()
    return False


def read_status(path: Path) -> ServiceStatus:
    """Read the last status of another process. Raises FileNotFoundError if it has written none."""
    return msgspec.json.decode(path.read_bytes(), type=ServiceStatus)


def _now_ms() -> int:
    return int(time.time() * 1000)


INTERVAL_S = 0.2


class ReplicaWatch(BackgroundThread):
    """A thread that updates the phrase about the replica in the status, and logs each new phase.

    It is separate because other threads wait, for example for Spark or for the topics. `is_stopping` returns
    True during an orderly stop.
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
                # If the service stops, the end of the replica is expected.
                if phase != "ended" or not self._is_stopping():
                    log.info("the replica has another phase", phase=phase, reason=state.reason)
            self._stopped.wait(INTERVAL_S)
