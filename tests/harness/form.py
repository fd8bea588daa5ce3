"""The form of the coordinators that tests start: with a replica, or the query alone (`pytest --pure`)."""

from dataclasses import replace

from streaming.service.options import Options

# Tests read topics after answers, so batches are frequent. At 100 ms a coordinator whose groups have members
# takes half as much processor time again.
BATCH_INTERVAL_MS = 400

has_replica = True
"""Set once, before tests are collected."""


def arguments() -> list[str]:
    """What `run` is given."""
    return ["--batch-interval-ms", str(BATCH_INTERVAL_MS)] if has_replica else ["--no-replica"]


def formed(options: Options) -> Options:
    """The options of a coordinator of this form. What a test has chosen stays: no replica, an interval."""
    if not has_replica:
        return replace(options, replica=False)
    if not options.replica or options.batch_interval_ms is not None:
        return options
    return replace(options, batch_interval_ms=BATCH_INTERVAL_MS)
