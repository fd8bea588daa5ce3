"""The batches of a query: Spark's progress reports, the pin of the last committed batch, and the description
of a failing batch.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from pyspark.sql.streaming import StreamingQuery

from checkpoints.checkpoint import Checkpoint
from checkpoints.spark_logs import planned_ends
from kafka_why.local_files import FolderError, FolderNotWritable
from kafka_why.metrics.batch_progress import BatchProgress

# Spark's progress reports of batches, polled instead of listened to (docs/decisions/0005-metrics.md).
#
# A poll costs one call into the JVM, and one more for each batch since the last poll. Polls miss no batch
# unless more than 100 batches pass between two of them, because Spark keeps 100 reports.


_decode = msgspec.json.Decoder(BatchProgress).decode


class ProgressReader:
    """A reader of the batches of one run of a query, each once and in order."""

    def __init__(self, query: StreamingQuery) -> None:
        # PySpark's own properties convert all of Spark's reports into Python objects at each call.
        self._query = query._jsq
        self._last_id = -1

    def new(self) -> list[BatchProgress]:
        """Return the batches since the last call. Raises Py4JError if the JVM has ended."""
        last = self._query.lastProgress()
        if last is None:
            return []
        newest = _decode(last.json())
        if newest.batch_id <= self._last_id or not newest.is_executed:
            return []
        is_next = newest.batch_id == self._last_id + 1
        batches = [newest] if is_next else list(self._newest_first())[::-1]
        self._last_id = newest.batch_id
        return batches

    def _newest_first(self) -> Iterator[BatchProgress]:
        """Yield the reports from the newest back to the first that was not returned before."""
        recent = self._query.recentProgress()
        for i in range(len(recent) - 1, -1, -1):
            progress = _decode(recent[i].json())
            if not progress.is_executed:
                continue
            if progress.batch_id <= self._last_id:
                return
            yield progress


# Each pin is synced to the disk, which may also hold the broker's log.
INTERVAL_S = 1.0
# A driver that lost the topics may replace the plans of its successor's first two batches, not of later ones.
FIRST_BATCHES = 3


class CommittedPin:
    """The pin of a checkpoint's last committed batch. A full disk is not an error, because a later batch will
    be pinned.
    """

    def __init__(
        self, checkpoint: Checkpoint, topic: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkpoint = checkpoint
        self._topic = topic
        self._now_s = now_s
        self._batch = -1
        self._seen: tuple[int, Mapping[int, int]] = (-1, {})
        self._taken_s = float("-inf")
        self._count = 0

    def pin_often(self, batch: int, ends: Mapping[int, int]) -> None:
        """Pin a committed batch if it is one of the first, or if no batch was pinned within a second.

        `ends` are the offsets, by partition, up to which it really read. A driver that lost the topics may
        since have replaced the plan in the checkpoint (docs/decisions/0019-a-standby.md).
        """
        self._seen = (batch, ends)
        self._count += 1
        if self._count <= FIRST_BATCHES or self._now_s() - self._taken_s >= INTERVAL_S:
            self.pin(batch)

    def pin(self, batch: int) -> None:
        """Pin a batch now, or none if it is -1. The offsets are those given to `pin_often`, or else its
        plan's.
        """
        if batch <= self._batch:
            return
        self._taken_s = self._now_s()
        try:
            seen, ends = self._seen
            self._checkpoint.pin_committed(batch, self._topic, ends if seen == batch else None)
        except FolderNotWritable:
            return
        self._batch = batch


# The id of a record, or of a request in a pack, in `streaming.query.handling.OperatorError`.
_RECORD = re.compile(r"OperatorError: record (\S+-\d+-\d+(?:#\d+)?) of group")

_LEFT_BEHIND = re.compile(r"record (\S+-\d+-\d+(?:#\d+)?)")

_NAMED_FILES = 5


def describe_failing_batch(
    checkpoint: Checkpoint, batch: int, failures: int, error: str, interrupted: Sequence[str] = ()
) -> str:
    """Return one paragraph for the operator: the batch, its records, the failing one if known, and what to
    do.

    `interrupted` are the requests that workers handled when they died (`streaming.query.operator`).
    """
    named = _RECORD.search(error) or _LEFT_BEHIND.fullmatch("; ".join(interrupted))
    if named:
        remedy = (
            f"the record at fault is {named[1]}; start with --skip-record {named[1]} to dead-letter it unread"
        )
    elif interrupted:
        remedy = f"Python workers died while they handled {', '.join(interrupted)}"
    else:
        remedy = "the error names no record, so find the cause in its text"
    return (
        f"batch {batch} failed {failures} times and is tried again. "
        f"Its records: {_describe_records(checkpoint, batch)}. "
        f"{remedy} (docs/recovery.md, 'A batch that fails again and again'). Last error: {error[:2000]}"
    )


def describe_damaged_checkpoint(batch: int, damage: Sequence[str], remedy: str) -> str:
    """Return one paragraph for the operator: the batch that cannot run, the damaged files, and what to do.

    `remedy` is what to do if these files are lost.
    """
    more = f" (and {len(damage) - _NAMED_FILES} more files)" if len(damage) > _NAMED_FILES else ""
    return (
        f"batch {batch} cannot be run because the checkpoint is damaged: "
        f"{'; '.join(damage[:_NAMED_FILES])}{more}. Put back these files, or {remedy}"
    )


def _describe_records(checkpoint: Checkpoint, batch: int) -> str:
    """Return the offsets of the records that a batch reads, as text for the operator."""
    end = _offsets(checkpoint, batch)
    begin = _offsets(checkpoint, batch - 1)
    ranges = [
        f"{topic}[{partition}] {begin.get(topic, {}).get(partition, 0)} to {until - 1}"
        for topic, partitions in end.items()
        for partition, until in sorted(partitions.items())
        if until > begin.get(topic, {}).get(partition, 0)
    ]
    return ", ".join(ranges) or "not planned yet"


def _offsets(checkpoint: Checkpoint, batch: int) -> dict[str, dict[int, int]]:
    try:
        return planned_ends(checkpoint.files, batch)
    except FolderError:
        return {}
