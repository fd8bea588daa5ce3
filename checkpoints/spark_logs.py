"""Spark's two logs of a checkpoint: `offsets/N` says what batch N reads, `commits/N` that it is done.

A file is a line with the version of the log, then JSON. In `offsets/N` a line with the watermark, the time
and Spark's pinned settings comes before the line of the one source.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

_WATERMARK, _TIMESTAMP, _NEXT_WATERMARK = "batchWatermarkMs", "batchTimestampMs", "nextBatchWatermarkMs"
_METADATA_LINE, _SOURCE_LINE = 1, 2
_UNREADABLE = (OSError, LookupError, ValueError, msgspec.DecodeError)


class SparkLogDamaged(RuntimeError):
    """A file of Spark's logs cannot be read. The message names it."""


class PlannedBatch(Struct, frozen=True):
    """What a batch reads: up to the offsets `ends` (exclusive) by partition, under this watermark.

    `timestamp_ms` is the time at which Spark planned it.
    """

    ends: dict[int, int]
    watermark_ms: int
    timestamp_ms: int


def read_planned(checkpoint: Path, batch: int, topic: str) -> PlannedBatch:
    """Read what a batch of the coordinator's query reads of its topic. Raises SparkLogDamaged."""
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_bytes().splitlines()
        metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
        ends = msgspec.json.decode(lines[_SOURCE_LINE], type=dict[str, dict[int, int]])
        return PlannedBatch(ends[topic], int(metadata[_WATERMARK]), int(metadata[_TIMESTAMP]))
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{path} cannot be read: {error!r}") from error


def read_next_watermark_ms(checkpoint: Path, batch: int) -> int:
    """Read the watermark after a committed batch, in ms. Raises SparkLogDamaged."""
    path = checkpoint / "commits" / str(batch)
    try:
        return int(_commit(path)[1][_NEXT_WATERMARK])
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{path} cannot be read: {error!r}") from error


def rewrite_planned(checkpoint: Path, batch: int, planned: PlannedBatch, topic: str) -> None:
    """Write what a batch reads of a topic. The version and Spark's settings are those of batch 0."""
    offsets = checkpoint / "offsets"
    lines = (offsets / "0").read_bytes().splitlines()
    metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
    metadata |= {_WATERMARK: planned.watermark_ms, _TIMESTAMP: planned.timestamp_ms}
    source = msgspec.json.encode({topic: planned.ends})
    _replace(offsets / str(batch), [lines[0], msgspec.json.encode(metadata), source])


def rewrite_next_watermark_ms(checkpoint: Path, batch: int, watermark_ms: int) -> None:
    """Change the watermark after a committed batch."""
    path = checkpoint / "commits" / str(batch)
    version, commit = _commit(path)
    _replace(path, [version, msgspec.json.encode(commit | {_NEXT_WATERMARK: watermark_ms})])


def _commit(path: Path) -> tuple[bytes, dict[str, Any]]:
    version, content = path.read_bytes().splitlines()[:2]
    return version, msgspec.json.decode(content, type=dict[str, Any])


def _replace(path: Path, lines: list[bytes]) -> None:
    # Hadoop's local file system reads a file without its checksum file unchecked.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_bytes(b"\n".join(lines))
