"""A supervisor that restarts an embedded server when the server ends by itself, and gives up after some
failed attempts.
"""

import time
from collections.abc import Callable

import structlog

from embedded.java import ServerProcess
from kafka_why.errors import MultilineError
from kafka_why.lifetimes import BackgroundThread
from kafka_why.local_files import describe_full_disk

# The pauses before the attempts to restart the server, in seconds. If the last attempt fails, the supervisor
# gives up.
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
# If a server ends after it has run for this long, the attempts count from 0 again.
STEADY_S = 60.0
_POLL_S = 0.25
_SPACE_POLL_S = 1.0

log = structlog.get_logger()


class ServerSupervisor(BackgroundThread):
    """A thread that restarts a server when the server ends, with the same data and ports.

    When it gives up, it calls `on_failure` with the reason, on this thread. While the disk of the server's
    folder is full, it does not try. `stop` waits for a start in progress, and leaves the server running.
    `name` is the server's name in log lines and in the reason, such as "the embedded broker".
    """

    def __init__(self, server: ServerProcess, name: str, on_failure: Callable[[str], None]) -> None:
        super().__init__("server-supervisor")
        self._server = server
        self._name = name
        self._on_failure = on_failure

    def _run(self) -> None:
        """Restart the server whenever it ends, until the supervisor stops or gives up."""
        attempts, started_s = 0, time.monotonic()
        while not self._stopped.wait(_POLL_S):
            exit_code = self._server.exit_code()
            if exit_code is None:
                continue
            self._server.kill()  # it has ended, so this only reaps the process
            log.error(f"{self._name} ended", exit_code=exit_code, log=str(self._server.log_path))
            if time.monotonic() - started_s > STEADY_S:
                attempts = 0
            attempts, reason = self._restart(attempts, f"it ended with exit code {exit_code}")
            if reason is not None:
                return self._give_up(attempts, reason)
            started_s = time.monotonic()

    def _restart(self, attempts: int, reason: str) -> tuple[int, str | None]:
        """Try to start the server until it runs, no attempt is left, or the supervisor stops.

        `attempts` is the number of attempts since the server last ran for `STEADY_S`. Returns it with those
        made here, and the reason of the last failure if no attempt is left, else None.
        """
        while attempts < len(PAUSES_S):
            if not self._wait_to_restart(PAUSES_S[attempts]):
                return attempts, None
            attempts += 1
            try:
                self._server.start()
            except (MultilineError, OSError) as error:
                self._server.kill()
                reason, _, _ = str(error).partition("\n")
                log.error(f"{self._name} did not start", attempt=attempts, reason=reason)
            else:
                log.warning(f"{self._name} runs again", attempt=attempts)
                return attempts, None
        return attempts, reason

    def _give_up(self, attempts: int, reason: str) -> None:
        """Log the failure and report it to `on_failure`. `reason` is that of the last attempt."""
        failure = (
            f"{self._name} was started again {attempts} times and does not stay up: {reason} "
            f"(its log is {self._server.log_path})"
        )
        log.error(f"{self._name} is given up", reason=failure)
        self._on_failure(failure)

    def _wait_to_restart(self, pause_s: float) -> bool:
        """Wait for the pause, then for space on the disk. Return False if the supervisor stops meanwhile."""
        has_logged = False
        while not self._stopped.wait(pause_s):
            full_disk = describe_full_disk([self._server.log_path.parent])
            if full_disk is None:
                return True
            if not has_logged:
                log.error(f"{self._name} waits for space", reason=full_disk)
            has_logged, pause_s = True, _SPACE_POLL_S
        return False
