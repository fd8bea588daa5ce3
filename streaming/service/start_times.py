"""How long each stage of a start took, as one line of the log."""

import time

import structlog

from kafka_why.metrics.batch_progress import BatchProgress

log = structlog.get_logger()


class StartTimes:
    """The stages of the start of one coordinator, each with the seconds until its end. Stages may overlap."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._is_done = False
        self.ends_s: dict[str, float] = {}

    def end_of(self, stage: str) -> None:
        """The stage ends now. After the first batch nothing changes anymore."""
        if self._is_done:
            return
        self.ends_s[stage] = round(time.monotonic() - self._began_s, 2)

    def first_batch(self, batch: BatchProgress) -> None:
        """A batch was committed. With the first one, the start ends and is logged."""
        if self._is_done:
            return
        self.end_of("first_batch")
        self._is_done = True
        log.info("batches are being committed", **self.ends_s, first_batch_ms=batch.duration_ms)
