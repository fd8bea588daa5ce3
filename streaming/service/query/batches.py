"""The batches of a query: Spark's progress reports, the record of the last committed batch, and the
description of a failing batch.
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

_decode = msgspec.json.Decoder(BatchProgress).decode


class ProgressReader:
    """A poller of Spark's progress reports of one run of a query (docs/decisions/0005-metrics.md).

    It returns each batch once and in order, unless more than 100 batches pass between two polls, because
    Spark keeps 100 reports. A poll costs one call into the JVM, and one more for each batch since the last.
    """

    def __init__(self, query: StreamingQuery) -> None:
        # PySpark's own properties convert all of Spark's reports into Python objects at each call.
        self._java_query = query._jsq
        self._last_id = -1  # of the last batch that was returned

    def new_batches(self) -> list[BatchProgress]:
        """Return the batches since the last call. Raises Py4JError if the JVM has ended."""
        last_report = self._java_query.lastProgress()
        if last_report is None:
            return []
        newest = _decode(last_report.json())
        if newest.batch_id <= self._last_id or not newest.is_executed:
            return []
        has_missed_none = newest.batch_id == self._last_id + 1
        batches = [newest] if has_missed_none else list(self._newest_first())[::-1]
        self._last_id = newest.batch_id
        return batches

    def _newest_first(self) -> Iterator[BatchProgress]:
        """Yield the reports from the newest back to the first that was not returned before."""
        recent = self._java_query.recentProgress()
        for i in range(len(recent) - 1, -1, -1):
            progress = _decode(recent[i].json())
            if not progress.is_executed:
                continue
            if progress.batch_id <= self._last_id:
                return
            yield progress


# The shortest time between two records in the checkpoint. Each is synced to the disk, which may also hold the
# broker's log.
INTERVAL_S = 1.0
# A driver that lost the topics may replace the plans of its successor's first two batches, not of later ones.
FIRST_BATCHES = 3


class CommittedBatchRecorder:
    """A recorder of the last committed batch and its end offsets in the checkpoint. A full disk is not an
    error, because a later batch will be recorded.
    """

    def __init__(
        self, checkpoint: Checkpoint, topic: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkpoint = checkpoint
        self._topic = topic
        self._now_s = now_s
        self._recorded_batch = -1
        self._last_committed: tuple[int, Mapping[int, int]] = (-1, {})  # the last batch, and its end offsets
        self._recorded_s = float("-inf")
        self._committed_count = 0

    def record_if_due(self, batch: int, ends: Mapping[int, int]) -> None:
        """Record a committed batch if it is one of the first after the start, or if none was recorded within
        INTERVAL_S.

        `ends` are the offsets, by partition, at which the batch really ended. A driver that lost the topics
        may since have replaced the plan in the checkpoint (docs/decisions/0019-a-standby.md).
        """
        self._last_committed = (batch, ends)
        self._committed_count += 1
        if self._committed_count <= FIRST_BATCHES or self._now_s() - self._recorded_s >= INTERVAL_S:
            self.record(batch)

    def record(self, batch: int) -> None:
        """Record a batch now, unless `batch` is -1 or already recorded.

        If `record_if_due` was last called with another batch, the offsets are those of the batch's plan.
        """
        if batch <= self._recorded_batch:
            return
        self._recorded_s = self._now_s()
        try:
            last, ends = self._last_committed
            self._checkpoint.store_committed(batch, self._topic, ends if last == batch else None)
        except FolderNotWritable:
            return
        self._recorded_batch = batch


# The id of a record, or of a request in a pack, in the text of a `streaming.query.handling.OperatorError`.
_RECORD_IN_ERROR = re.compile(r"OperatorError: record (\S+-\d+-\d+(?:#\d+)?) of group")

# The same id in a note of a worker (`streaming.query.operator`).
_RECORD_IN_NOTE = re.compile(r"record (\S+-\d+-\d+(?:#\d+)?)")

_NAMED_FILES_MAX = 5


def describe_failing_batch(
    checkpoint: Checkpoint, batch: int, failures: int, error: str, interrupted: Sequence[str] = ()
) -> str:
    """Return one paragraph for the operator: the batch, its records, the failing one if known, and what to
    do.

    `interrupted` are the notes of workers that have died: what each of them handled then
    (`streaming.query.operator`).
    """
    # Several notes do not match: it is not known which of them names the record at fault.
    match = _RECORD_IN_ERROR.search(error) or _RECORD_IN_NOTE.fullmatch("; ".join(interrupted))
    if match:
        record_id = match[1]
        remedy = (
            f"the record at fault is {record_id}; start with --skip-record {record_id} to dead-letter it "
            "unread"
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
    more = f" (and {len(damage) - _NAMED_FILES_MAX} more files)" if len(damage) > _NAMED_FILES_MAX else ""
    return (
        f"batch {batch} cannot be run because the checkpoint is damaged: "
        f"{'; '.join(damage[:_NAMED_FILES_MAX])}{more}. Put back these files, or {remedy}"
    )


def _describe_records(checkpoint: Checkpoint, batch: int) -> str:
    """Return the offsets of the records that a batch reads, as text for the operator."""
    ends = _planned_ends(checkpoint, batch)
    begins = _planned_ends(checkpoint, batch - 1)
    ranges = [
        f"{topic}[{partition}] {begins.get(topic, {}).get(partition, 0)} to {end - 1}"
        for topic, partitions in ends.items()
        for partition, end in sorted(partitions.items())
        if end > begins.get(topic, {}).get(partition, 0)
    ]
    return ", ".join(ranges) or "not planned yet"


def _planned_ends(checkpoint: Checkpoint, batch: int) -> dict[str, dict[int, int]]:
    """Return the end offsets of a planned batch, or {} if its plan is missing or damaged."""
    try:
        return planned_ends(checkpoint.files, batch)
    except FolderError:
        return {}
