"""The process of a replica, as the service sees it."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from kafka_why.contract.service.replica import ReplicaPhase
from streaming.replica.pipes import Committed, Pending, Promote, Report, Start, line, read_report

_END_GRACE_S = 1.0


class ReplicaProcess:
    """A replica that runs. `follow` reads its reports in the caller's thread, the rest is thread-safe."""

    def __init__(
        self, start: Start, on_pending: Callable[[bytes, bytes | None], None] = lambda *_: None
    ) -> None:
        self._on_pending = on_pending
        self.report = Report(phase=ReplicaPhase.SEEDING, reason="its process starts")
        self.reported_s = time.monotonic()
        self._seed = Path(start.seed)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streaming.replica"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A terminal sends Ctrl-C to its whole process group. The service itself ends the replica.
            process_group=0,
        )
        self._send(line(start))

    def follow(self) -> str:
        """Take its reports until it ends. Returns the reason of its end."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with suppress(msgspec.DecodeError):  # the last line of a process that was killed may be cut
                self._handle(read_report(text))
        code = self._process.wait()
        self._process.stdout.close()
        self._hang_up()
        self._seed.unlink(missing_ok=True)
        if self.report.phase is ReplicaPhase.ENDED and self.report.reason:
            return self.report.reason
        return f"its process ended with {code}"

    def _handle(self, message: Report | Pending) -> None:
        if isinstance(message, Report):
            self.report, self.reported_s = message, time.monotonic()
            return
        for key, value in message.records:
            self._on_pending(key, value)

    def tell(self, message: Committed | Promote) -> None:
        """Send it a message."""
        self._send(line(message))

    def end(self) -> None:
        """End the process, which gives its last report if it can."""
        self._hang_up()
        try:
            self._process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # what it has not read
            self._process.stdin.close()

    def _send(self, text: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, which `follow` finds
            self._process.stdin.write(text)
            self._process.stdin.flush()
