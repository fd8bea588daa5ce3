"""What the coordinator is doing, in memory and as a small file that others can read."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, structs

log = structlog.get_logger()


class Phase(StrEnum):
    """STARTING, READY (batches are being committed), RESTARTING (the query failed and is started again),
    FAILING (the same batch fails again and again), STOPPED."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILING = "failing"
    STOPPED = "stopped"


class Status(Struct, frozen=True):
    """`alarm` is what an operator has to look at even while the coordinator is ready; None if nothing.

    `batch_id` is the last batch that went through; the file has that of the last change.
    """

    phase: Phase
    reason: str
    since_ms: int
    batch_id: int = -1
    alarm: str | None = None


class StatusBoard:
    """The current status; every change is written to `path`. Safe for threads.

    No call raises because the file cannot be written. On a full disk the status is written over the old one,
    which needs no space; where that fails too, the file is removed, because an old status misleads. A status
    that is not in the file is written at the next call that finds space.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_written = True
        self._changed = threading.Condition()
        self._status = Status(Phase.STARTING, "not started", _now_ms())

    @property
    def current(self) -> Status:
        return self._status

    def enter(self, phase: Phase, reason: str, *, batch_id: int | None = None) -> None:
        """Move to a phase and say why; `batch_id` is the last batch committed, where that is known anew."""
        with self._changed:
            old = self._status
            last = old.batch_id if batch_id is None else batch_id
            alarm = None if phase is Phase.STOPPED else old.alarm  # nobody calls it off any more
            self._publish(Status(phase, reason, _now_ms(), last, alarm))

    def batch_committed(self, batch_id: int) -> None:
        """A batch went through: whatever was wrong before, the coordinator is ready."""
        with self._changed:
            old = self._status
            if batch_id <= old.batch_id or old.phase is Phase.STOPPED:
                return  # told late: since then something else has happened
            if old.phase is Phase.READY:
                self._status = structs.replace(old, batch_id=batch_id)
                self._changed.notify_all()
            else:
                reason = "batches are being committed"
                self._publish(Status(Phase.READY, reason, _now_ms(), batch_id, old.alarm))

    def set_alarm(self, alarm: str | None) -> None:
        """Raise an alarm, or with None call it off. A coordinator that has stopped has none."""
        with self._changed:
            if self._status.phase is Phase.STOPPED:
                return
            if alarm != self._status.alarm or not self._is_written:
                self._publish(structs.replace(self._status, alarm=alarm))

    def wait_for(self, *phases: Phase, timeout_s: float | None = None) -> bool:
        """Wait until the phase is one of these; False when the time is up."""
        return self.wait_until(lambda status: status.phase in phases, timeout_s)

    def wait_until(self, holds: Callable[[Status], bool], timeout_s: float | None = None) -> bool:
        """Wait until something holds of the status; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self._status), timeout_s)

    def _publish(self, status: Status) -> None:
        self._status = status
        error = _write(self._path, msgspec.json.encode(status))
        if error is not None and self._is_written:
            log.error("the status cannot be written", path=str(self._path), error=str(error))
        self._is_written = error is None
        self._changed.notify_all()


def _write(path: Path, content: bytes) -> OSError | None:
    """Write a file, whole or not at all; what prevented that."""
    temporary = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        return None if _overwrite(path, content) else error
    return None


def _overwrite(path: Path, content: bytes) -> bool:
    """Write over a file, which takes no space on most file systems, or else remove it."""
    try:
        with path.open("r+b", buffering=0) as file:
            padded = content.ljust(os.fstat(file.fileno()).st_size)  # JSON may end with blanks
            if file.write(padded) == len(padded):
                return True
    except OSError:
        pass
    with suppress(OSError):
        path.unlink()
    return False


def read_status(path: Path) -> Status:
    """The status another process last wrote; FileNotFoundError where none ever did."""
    return msgspec.json.decode(path.read_bytes(), type=Status)


def _now_ms() -> int:
    return int(time.time() * 1000)
