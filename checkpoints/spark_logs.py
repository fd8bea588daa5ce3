"""The two logs of Spark's checkpoint: `offsets/N` is the plan of batch N, `commits/N` exists once it is
committed. A file is a line with the version of the log, then lines of JSON. In `offsets/N` they are a line
with the watermark, the time and Spark's pinned settings, and a line with the end offsets of each source. The
coordinator's query has one source, the observer's two.
"""

from typing import Any

import msgspec
from msgspec import Struct

from checkpoints.metadata import Files
from kafka_why.local_files import FolderError

SPARK = "spark"
_WATERMARK, _TIMESTAMP, _NEXT_WATERMARK = "batchWatermarkMs", "batchTimestampMs", "nextBatchWatermarkMs"
_METADATA_LINE, _FIRST_SOURCE_LINE = 1, 2
_NO_OFFSETS = b"-"  # the line of a source that has no offsets yet
_UNREADABLE = (LookupError, ValueError, msgspec.DecodeError)


_REPAIR = "'group-coordinator state rollback' repairs it (docs/recovery.md, 'A damaged checkpoint')"


class SparkLogDamaged(FolderError):
    """A file of Spark's logs cannot be read. The message names it."""


class PlannedBatch(Struct, frozen=True):
    """The plan of a batch that reads one topic."""

    ends: dict[int, int]  # the offsets (exclusive) up to which the batch reads, by partition
    watermark_ms: int  # the deadlines up to it fire in this batch
    timestamp_ms: int  # when Spark planned the batch


def last_batch(files: Files, log: str) -> int:
    """Return the last batch in Spark's `offsets` (planned) or `commits` (committed) log, -1 if it is
    empty.
    """
    return max((int(name) for name in files.names(f"{SPARK}/{log}") if name.isdigit()), default=-1)


def planned_ends(files: Files, batch: int) -> dict[str, dict[int, int]]:
    """Return the end offsets (exclusive) of a planned batch, by topic and partition.

    The result is empty if the batch is not planned. Raises SparkLogDamaged.
    """
    name = f"{SPARK}/offsets/{batch}"
    try:
        # The unpacking raises ValueError if the file has no source line.
        first, *others = files.read(name).splitlines()[_FIRST_SOURCE_LINE:]
        ends: dict[str, dict[int, int]] = {}
        for line in (first, *others):
            if line != _NO_OFFSETS:
                ends |= msgspec.json.decode(line, type=dict[str, dict[int, int]])
    except FileNotFoundError:
        return {}
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_REPAIR}") from error
    return ends


def read_planned(files: Files, batch: int, topic: str) -> PlannedBatch:
    """Read the plan of a batch of the coordinator's query. Raises FileNotFoundError if the batch is not
    planned, and SparkLogDamaged.
    """
    name = f"{SPARK}/offsets/{batch}"
    try:
        lines = files.read(name).splitlines()
        metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
        ends = msgspec.json.decode(lines[_FIRST_SOURCE_LINE], type=dict[str, dict[int, int]])
        return PlannedBatch(ends[topic], int(metadata[_WATERMARK]), int(metadata[_TIMESTAMP]))
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_REPAIR}") from error


def read_next_watermark_ms(files: Files, batch: int) -> int:
    """Read the watermark that follows a committed batch, in ms. Raises FileNotFoundError, SparkLogDamaged."""
    name = f"{SPARK}/commits/{batch}"
    try:
        return int(_read_commit(files, name)[1][_NEXT_WATERMARK])
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_REPAIR}") from error


def rewrite_planned(files: Files, batch: int, planned: PlannedBatch, topic: str) -> None:
    """Write a batch's plan for a topic. The version and Spark's settings are copied from the plan of batch 0,
    which must exist.
    """
    files.write(f"{SPARK}/offsets/{batch}", encode_planned(planned, topic, files.read(f"{SPARK}/offsets/0")))


def encode_planned(planned: PlannedBatch, topic: str, like: bytes) -> bytes:
    """Return the content of a file in Spark's folder `offsets`.

    The version and Spark's settings are copied from `like`, the content of another such file.
    """
    lines = like.splitlines()
    metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
    metadata |= {_WATERMARK: planned.watermark_ms, _TIMESTAMP: planned.timestamp_ms}
    source = msgspec.json.encode({topic: planned.ends})
    return b"\n".join([lines[0], msgspec.json.encode(metadata), source])


def rewrite_next_watermark_ms(files: Files, batch: int, watermark_ms: int) -> None:
    """Replace the watermark that follows a committed batch."""
    name = f"{SPARK}/commits/{batch}"
    version, commit = _read_commit(files, name)
    commit |= {_NEXT_WATERMARK: watermark_ms}
    files.write(name, b"\n".join([version, msgspec.json.encode(commit)]))


def _read_commit(files: Files, name: str) -> tuple[bytes, dict[str, Any]]:
    """Return the version line and the fields of a file in Spark's folder `commits`."""
    version, content = files.read(name).splitlines()[:2]
    return version, msgspec.json.decode(content, type=dict[str, Any])
