"""Finds the damaged files of Spark's checkpoint, because Spark's own errors do not name them.

Hadoop's local file system keeps a checksum file beside each file: `.NAME.crc`. It begins with "crc", a zero
byte and the size of a part (4 bytes, big-endian); the CRC-32 of each part of the file follows.
Source: org.apache.hadoop.fs.ChecksumFileSystem.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from checkpoints.files import Files
from checkpoints.spark_logs import SPARK, last_batch

_MAGIC = b"crc\0"
_HEADER_BYTES = 8


def describe_damage(files: Files) -> list[str]:
    """List the damaged or missing files without which the query cannot continue, each with its fault. Only a
    local checkpoint is looked at, because other file systems keep checksums of their own.

    The query must not run meanwhile, because it writes files and purges old ones.
    """
    if files.local is None:
        return []
    checkpoint = files.local / SPARK
    committed = last_batch(files, "commits")
    return [
        *_unreadable(checkpoint, committed),
        *(f"{path} is missing" for path in _missing_changelogs(checkpoint)),
    ]


def is_intact(path: Path) -> bool:
    """Whether a file exists and matches its checksum. A file without a checksum file counts as intact."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    try:
        expected = path.with_name(f".{path.name}.crc").read_bytes()
    except OSError:
        return True
    return _matches(content, expected)


def _unreadable(checkpoint: Path, committed: int) -> Iterator[str]:
    for checksums in sorted(checkpoint.rglob(".*.crc")):
        path = checksums.with_name(checksums.name[1:].removesuffix(".crc"))
        if path.name.startswith("."):
            continue  # a temporary file left by a crash
        if _is_superseded(path, checkpoint, committed):
            continue
        try:
            expected, content = checksums.read_bytes(), path.read_bytes()
        except FileNotFoundError:
            continue  # purged meanwhile
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror}"
        else:
            if not _matches(content, expected):
                yield f"{path} does not match its checksum"


def _is_superseded(path: Path, checkpoint: Path, committed: int) -> bool:
    """Return True if Spark does not read this file to continue after the batch `committed`.

    Spark's logs are read from the batch before on. Of a state store, the newest snapshot up to the version
    `committed + 1` is read, and the changelogs after it.
    """
    if not path.stem.isdigit():
        return False
    number = int(path.stem)
    if path.parent.parent == checkpoint:  # a log
        return number < committed
    snapshots = [int(it.stem) for it in path.parent.glob("*.zip") if it.stem.isdigit()]
    return number < max((it for it in snapshots if it <= committed + 1), default=0)


def _matches(content: bytes, expected: bytes) -> bool:
    if len(expected) < _HEADER_BYTES or not expected.startswith(_MAGIC):
        return True  # the checksum file itself is damaged: Hadoop warns of that and reads the file
    (part_bytes,) = struct.unpack(">I", expected[len(_MAGIC) : _HEADER_BYTES])
    parts = (content[i : i + part_bytes] for i in range(0, len(content), part_bytes))
    return b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts) == expected[_HEADER_BYTES:]


def _missing_changelogs(checkpoint: Path) -> Iterator[Path]:
    """The missing changelogs between the last snapshot of a state store and its newest changelog."""
    for newest in _newest_changelogs(checkpoint):
        folder = newest.parent
        snapshots = [int(path.stem) for path in folder.glob("*.zip") if path.stem.isdigit()]
        last = max((number for number in snapshots if number <= int(newest.stem)), default=0)
        for version in range(last + 1, int(newest.stem)):
            path = folder / f"{version}.changelog"
            if not path.exists():
                yield path


def _newest_changelogs(checkpoint: Path) -> Iterator[Path]:
    for folder in sorted(checkpoint.glob("state/*/*")):
        changelogs = [path for path in folder.glob("*.changelog") if path.stem.isdigit()]
        if changelogs:
            yield max(changelogs, key=lambda path: int(path.stem))
