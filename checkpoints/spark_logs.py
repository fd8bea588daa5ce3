"""The two logs of Spark's checkpoint: `offsets/N` is the plan of batch N, `commits/N` exists once it is
committed. A file is a line with the version of the log, then JSON. In `offsets/N` a line with the watermark,
the time and Spark's pinned settings comes before a line for each source: the coordinator's query has one, the
observer's two.
"""

from typing import Any

import msgspec
from msgspec import Struct

from checkpoints.metadata import Files
from kafka_why.local_files import FolderError

SPARK = "spark"
_WATERMARK, _TIMESTAMP, _NEXT_WATERMARK = "batchWatermarkMs", "batchTimestampMs", "nextBatchWatermarkMs"
_METADATA_LINE, _SOURCE_LINE = 1, 2
_NO_OFFSETS = b"-"  # the line of a source that has no offsets yet
_UNREADABLE = (LookupError, ValueError, msgspec.DecodeError)


_MEND = "'group-coordinator state rollback' repairs it (docs/recovery.md, 'A damaged checkpoint')"


class SparkLogDamaged(FolderError):
    """A file of Spark's logs cannot be read. The message names it."""


class PlannedBatch(Struct, frozen=True):
    """The plan of a batch: read up to the offsets `ends` (exclusive) by partition, under this watermark.

    `timestamp_ms` is the time of Spark's plan.
    """

    ends: dict[int, int]
    watermark_ms: int
    timestamp_ms: int


def last_batch(files: Files, log: str) -> int:
    """Return the last batch in Spark's `offsets` (planned) or `commits` (committed) log, -1 if it is
    empty.
    """
    names = files.names(f"{SPARK}/{log}")
    return max((int(name) for name in names if name.isdigit()), default=-1)


def planned_ends(files: Files, batch: int) -> dict[str, dict[int, int]]:
    """Return the offsets, by topic and partition, up to which (exclusive) a batch reads.

    The result is empty if the batch is not planned. Raises SparkLogDamaged.
    """
    name = f"{SPARK}/offsets/{batch}"
    try:
        first, *others = files.read(name).splitlines()[_SOURCE_LINE:]
        ends: dict[str, dict[int, int]] = {}
        for line in (first, *others):
            if line != _NO_OFFSETS:
                ends |= msgspec.json.decode(line, type=dict[str, dict[int, int]])
    except FileNotFoundError:
        return {}
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_MEND}") from error
    return ends


def read_planned(files: Files, batch: int, topic: str) -> PlannedBatch:
    """Read the plan of a batch of the coordinator's query. Raises FileNotFoundError if the batch is not
    planned, and SparkLogDamaged.
    """
    name = f"{SPARK}/offsets/{batch}"
    try:
        lines = files.read(name).splitlines()
        metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
        ends = msgspec.json.decode(lines[_SOURCE_LINE], type=dict[str, dict[int, int]])
        return PlannedBatch(ends[topic], int(metadata[_WATERMARK]), int(metadata[_TIMESTAMP]))
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_MEND}") from error


def read_next_watermark_ms(files: Files, batch: int) -> int:
    """Read the watermark after a committed batch, in ms. Raises FileNotFoundError, SparkLogDamaged."""
    name = f"{SPARK}/commits/{batch}"
    try:
        return int(_commit(files, name)[1][_NEXT_WATERMARK])
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_MEND}") from error


def rewrite_planned(files: Files, batch: int, planned: PlannedBatch, topic: str) -> None:
    """Write a batch's plan for a topic. The version and Spark's settings are those of batch 0."""
    content = encode_planned(planned, topic, files.read(f"{SPARK}/offsets/0"))
    files.write(f"{SPARK}/offsets/{batch}", content)


def encode_planned(planned: PlannedBatch, topic: str, like: bytes) -> bytes:
    """Return the content of a file in Spark's folder `offsets`.

    The version and Spark's settings are those of `like`, the content of another such file.
    """
    lines = like.splitlines()
    metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
    metadata |= {_WATERMARK: planned.watermark_ms, _TIMESTAMP: planned.timestamp_ms}
    source = msgspec.json.encode({topic: planned.ends})
    return b"\n".join([lines[0], msgspec.json.encode(metadata), source])


def rewrite_next_watermark_ms(files: Files, batch: int, watermark_ms: int) -> None:
    """Change the watermark after a committed batch."""
    name = f"{SPARK}/commits/{batch}"
    version, commit = _commit(files, name)
    commit |= {_NEXT_WATERMARK: watermark_ms}
    files.write(name, b"\n".join([version, msgspec.json.encode(commit)]))


def _commit(files: Files, name: str) -> tuple[bytes, dict[str, Any]]:
    version, content = files.read(name).splitlines()[:2]
    return version, msgspec.json.decode(content, type=dict[str, Any])
