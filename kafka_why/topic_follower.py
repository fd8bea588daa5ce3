"""A thread that follows topics, and begins again when no broker answers."""

from abc import abstractmethod

from kafka.errors import KafkaError

from kafka_why.connections.outage_warning import OutageWarning
from kafka_why.lifetimes import BackgroundThread

_RETRY_PAUSE_S = 1.0


class FollowerThread(BackgroundThread):
    """Calls `_connect_and_follow` until stopped. `purpose` is what its warnings say, such as `reading for the
    page`; the subclass tells `_warning` when it has worked.
    """

    def __init__(self, name: str, purpose: str) -> None:
        self._warning = OutageWarning(purpose)
        super().__init__(name)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._connect_and_follow()
            except KafkaError as error:
                self._retry_later(error)

    def _retry_later(self, error: KafkaError) -> None:
        self._warning.failed(error)
        self._stopped.wait(_RETRY_PAUSE_S)

    @abstractmethod
    def _connect_and_follow(self) -> None:
        """Follow until stopped. May raise KafkaError."""
