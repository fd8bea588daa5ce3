"""The embedded broker of a service: restarted when it ends by itself, given up after some attempts."""

import time
from collections.abc import Callable

import structlog

from embedded.broker import BrokerFailed, EmbeddedBroker
from kafka_why.connections.client_config import ClientConfig
from kafka_why.lifetimes import BackgroundThread
from kafka_why.local_files import describe_full_disk

# The pauses before the attempts to start again, in seconds. If the last attempt fails, the broker is given
# up.
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
# If a broker ends after it has run for this long, the attempts count from 0 again.
STEADY_S = 60.0
_POLL_S = 0.25
_SPACE_POLL_S = 1.0

log = structlog.get_logger()


class SupervisedBroker(BackgroundThread):
    """A broker that is started again when it ends, with its data and ports.

    When the broker is given up, `on_failure` is called with the reason, on the supervisor's thread. While the
    disk of the data folder is full, there is no attempt.
    """

    def __init__(self, broker: EmbeddedBroker, on_failure: Callable[[str], None]) -> None:
        super().__init__("broker-supervisor")
        self._broker = broker
        self._on_failure = on_failure

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients. It stays the same when the broker is restarted."""
        return self._broker.bootstrap_servers

    @property
    def client_config(self) -> ClientConfig:
        """The settings of a client, known as soon as `bootstrap_servers` is."""
        return self._broker.client_config

    def start(self) -> None:
        """Start the broker. A failed first start is not repeated. Raises the errors of
        `EmbeddedBroker.start`.
        """
        self._broker.start()
        super().start()

    def stop(self) -> None:
        """Shut the broker down for good. Waits for a start in progress."""
        super().stop()
        self._broker.stop()

    def _run(self) -> None:
        attempts, started_s = 0, time.monotonic()
        while not self._stopped.wait(_POLL_S):
            exit_code = self._broker.exit_code()
            if exit_code is None:
                continue
            self._broker.kill()  # it has ended, so this only reaps the process
            log.error("the embedded broker ended", exit_code=exit_code, log=str(self._broker.log_path))
            if time.monotonic() - started_s > STEADY_S:
                attempts = 0
            attempts, reason = self._start_again(attempts, f"it ended with exit code {exit_code}")
            if reason is not None:
                return self._give_up(attempts, reason)
            started_s = time.monotonic()

    def _start_again(self, attempts: int, reason: str) -> tuple[int, str | None]:
        """Start the broker until it runs or the service stops.

        Returns the attempts since the broker last ran steadily. If all are used up, also returns the reason
        of the last failure.
        """
        while attempts < len(PAUSES_S):
            if not self._wait(PAUSES_S[attempts]):
                return attempts, None
            attempts += 1
            try:
                self._broker.start()
            except (BrokerFailed, OSError) as error:
                self._broker.kill()
                reason, _, _ = str(error).partition("\n")
                log.error("the embedded broker did not start", attempt=attempts, reason=reason)
            else:
                log.warning("the embedded broker runs again", attempt=attempts)
                return attempts, None
        return attempts, reason

    def _give_up(self, attempts: int, reason: str) -> None:
        failure = (
            f"the embedded broker was started again {attempts} times and does not stay up: {reason} "
            f"(its log is {self._broker.log_path})"
        )
        log.error("the embedded broker is given up", reason=failure)
        self._on_failure(failure)

    def _wait(self, pause_s: float) -> bool:
        """Wait for the pause, and then for space on the disk. Return False if the service stops meanwhile."""
        has_logged = False
        while not self._stopped.wait(pause_s):
            full = describe_full_disk([self._broker.data_dir])
            if full is None:
                return True
            if not has_logged:
                log.error("the embedded broker waits for space", reason=full)
            has_logged, pause_s = True, _SPACE_POLL_S
        return False
