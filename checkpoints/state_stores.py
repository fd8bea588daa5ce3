"""The files of Spark's state stores: loadable versions, and damaged files.

Version N + 1 is the state after batch N. It is loaded from a snapshot, `<version>.zip`, and the changelogs
after it, `<version>.changelog`. A snapshot names files in `SSTs` and `logs` that it shares with others.
Source: RocksDBFileManager of Spark 4.2.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from checkpoints.metadata import Files
from checkpoints.spark_logs import SPARK, last_batch

# The folder, and the key of the name, of the files that a snapshot's metadata lists.
_SHARED = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))
_METADATA = "metadata"


class StateStore:
    """The store of one partition of the state. Its files must not change while it is used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changelogs = {int(path.stem): path for path in folder.glob("*.changelog") if path.stem.isdigit()}
        self.snapshots = {int(path.stem): path for path in folder.glob("*.zip") if path.stem.isdigit()}
        self.is_snapshot_intact = cache(self._is_snapshot_intact)
        self._is_changelog_intact = cache(lambda version: is_intact(self.changelogs[version]))

    def can_load(self, version: int) -> bool:
        """Return True if this version can be loaded, from any intact snapshot and the changelogs after it."""
        while version > 0 and not (version in self.snapshots and self.is_snapshot_intact(version)):
            if version not in self.changelogs or not self._is_changelog_intact(version):
                return False
            version -= 1
        return True

    def newer(self, version: int) -> Iterator[Path]:
        """Yield the snapshots and changelogs of later versions."""
        for files in (self.changelogs, self.snapshots):
            yield from (path for number, path in files.items() if number > version)

    def damaged_snapshots(self, version: int) -> list[Path]:
        """Return the damaged snapshots of this and earlier versions. Spark would load them before an older
        one.
        """
        return [
            path
            for number, path in sorted(self.snapshots.items())
            if number <= version and not self.is_snapshot_intact(number)
        ]

    def _is_snapshot_intact(self, version: int) -> bool:
        path = self.snapshots[version]
        return is_intact(path) and all(is_intact(file) for file in self._shared_files(path))

    def _shared_files(self, snapshot: Path) -> Iterator[Path]:
        try:
            with zipfile.ZipFile(snapshot) as archive:
                # A line with the version, then JSON.
                listed: dict[str, Any] = json.loads(archive.read(_METADATA).partition(b"\n")[2])
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            yield snapshot.with_suffix(".unreadable")  # a file that does not exist
            return
        for key, folder, name in _SHARED:
            yield from (self.folder / folder / file[name] for file in listed.get(key) or ())


def state_stores(spark: Path) -> list[StateStore]:
    """Return the stores of a checkpoint: one for each operator and partition."""
    folders = [path for path in sorted(spark.glob("state/*/*")) if path.name.isdigit()]
    return [StateStore(folder) for folder in folders]


def remove_torn_state(files: Files) -> list[Path]:
    """Remove the damaged files of versions after the last committed batch, and return them.

    No batch may be running. Only a local checkpoint is checked.

    An interrupted batch wrote such a file. The batch runs again, but on a local disk Spark keeps the existing
    file: the rename of the new one fails, and Spark ignores that (FileSystemBasedCheckpointFileManager of
    Spark 4.2).
    """
    if files.local is None:
        return []
    version = last_batch(files, "commits") + 1
    stores = state_stores(files.local / SPARK)
    torn = [path for store in stores for path in store.newer(version) if not is_intact(path)]
    for path in torn:
        for name in (path.name, f".{path.name}.crc"):
            files.remove(str(path.with_name(name).relative_to(files.local)))
    return torn


# Finds the damaged files of Spark's checkpoint, because Spark's own errors do not name them.
#
# Hadoop's local file system keeps a checksum file beside each file: `.NAME.crc`. It begins with "crc", a
# zero byte and the size of a part (4 bytes, big-endian); the CRC-32 of each part of the file follows.
# Source: org.apache.hadoop.fs.ChecksumFileSystem.


_MAGIC = b"crc\0"
_HEADER_BYTES = 8


def describe_damage(files: Files) -> list[str]:
    """List the damaged or missing files without which the query cannot continue, each with its fault.

    The query must not run, because it writes files and purges old ones. Only a local checkpoint is checked,
    because other file systems have their own checksums.
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
    """Return True if a file exists and matches its checksum. A file without a checksum file counts
    as intact.
    """
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
    """Return True if Spark does not need this file to continue after the batch `committed`.

    Spark needs its logs from that batch on, and of each state store the newest snapshot up to the version
    `committed + 1` and the changelogs after it.
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
        return True  # the checksum file itself is damaged: Hadoop logs a warning and reads the file
    (part_bytes,) = struct.unpack(">I", expected[len(_MAGIC) : _HEADER_BYTES])
    parts = (content[i : i + part_bytes] for i in range(0, len(content), part_bytes))
    return b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts) == expected[_HEADER_BYTES:]


def _missing_changelogs(checkpoint: Path) -> Iterator[Path]:
    """Yield the missing changelogs between the last snapshot of a state store and its newest changelog."""
    for store in state_stores(checkpoint):
        newest = max(store.changelogs, default=0)
        last = max((version for version in store.snapshots if version <= newest), default=0)
        for version in range(last + 1, newest):
            if version not in store.changelogs:
                yield store.folder / f"{version}.changelog"
