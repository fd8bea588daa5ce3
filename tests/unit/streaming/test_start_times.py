"""The log of a start."""

import structlog

from kafka_why.metrics.batch_progress import BatchProgress
from streaming.service.starts import StartTimes


def test_start_times_end_with_the_first_batch_and_are_logged_once() -> None:
    times = StartTimes()
    with structlog.testing.capture_logs() as logged:
        times.end_of("spark")
        times.batch_committed(BatchProgress(7, duration_ms={"addBatch": 5}))
        times.end_of("spark")
        times.batch_committed(BatchProgress(8))
    (line,) = logged
    assert list(times.ends_s) == ["spark", "first_batch"]
    assert line["first_batch_ms"] == {"addBatch": 5}
    assert {stage: line[stage] for stage in times.ends_s} == times.ends_s
