"""What the coordinator is doing, in memory and as a small file that others can read (`group-coordinator
status`).
"""

import threading
import time
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct, structs


class Phase(StrEnum):
    """STARTING, READY (batches are being committed), RESTARTING (the query failed and is started again),
    FAILING (the same batch fails again and again), STOPPED."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILING = "failing"
    STOPPED = "stopped"


class Status(Struct, frozen=True):
    """`alarm` is what an operator has to look at even while the coordinator is ready; None if nothing."""

    phase: Phase
    reason: str
    since_ms: int
    batch_id: int = -1
    alarm: str | None = None


class StatusBoard:
    """The current status; every change is written to `path`, whole or not at all. Safe for threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._status = Status(Phase.STARTING, "not started", _now_ms())

    @property
    def current(self) -> Status:
        return self._status

    def enter(self, phase: Phase, reason: str) -> None:
        """Move to a phase and say why."""
        with self._changed:
            self._publish(Status(phase, reason, _now_ms(), self._status.batch_id, self._status.alarm))

    def batch_committed(self, batch_id: int) -> None:
        """A batch went through: whatever was wrong before, the coordinator is ready."""
        with self._changed:
            if self._status.phase in (Phase.READY, Phase.STOPPED):
                self._status = structs.replace(self._status, batch_id=batch_id)
            else:
                alarm = self._status.alarm
                self._publish(Status(Phase.READY, "batches are being committed", _now_ms(), batch_id, alarm))

    def set_alarm(self, alarm: str | None) -> None:
        """Raise an alarm, or with None call it off."""
        with self._changed:
            if alarm != self._status.alarm:
                self._publish(structs.replace(self._status, alarm=alarm))

    def wait_for(self, *phases: Phase, timeout_s: float | None = None) -> bool:
        """Wait until the status is one of these; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: self._status.phase in phases, timeout_s)

    def _publish(self, status: Status) -> None:
        self._status = status
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(status))
        temporary.replace(self._path)
        self._changed.notify_all()


def read_status(path: Path) -> Status:
    """The status another process last wrote; FileNotFoundError where none ever did."""
    return msgspec.json.decode(path.read_bytes(), type=Status)


def _now_ms() -> int:
    return int(time.time() * 1000)
