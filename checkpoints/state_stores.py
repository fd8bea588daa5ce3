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

# The lists of files in a snapshot's metadata: key of the list, folder of its files, key of a file's name.
_SHARED_LISTS = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))
_METADATA = "metadata"


class StateStore:
    """The folder of one state store, that of one operator and partition. Its files must not change while this
    object is used, because it reads each of them once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Both by version.
        self.changelogs = {int(path.stem): path for path in folder.glob("*.changelog") if path.stem.isdigit()}
        self.snapshots = {int(path.stem): path for path in folder.glob("*.zip") if path.stem.isdigit()}
        self.is_snapshot_intact = cache(self._is_snapshot_intact)
        self._is_changelog_intact = cache(lambda version: is_intact(self.changelogs[version]))

    def can_load(self, version: int) -> bool:
        """Return True if this version can be loaded, from any intact snapshot and the changelogs after it."""
        while version > 0:
            if version in self.snapshots and self.is_snapshot_intact(version):
                return True
            if version not in self.changelogs or not self._is_changelog_intact(version):
                return False
            version -= 1
        return True  # version 0, the empty state, needs no file

    def newer(self, version: int) -> Iterator[Path]:
        """Yield the snapshots and changelogs of later versions."""
        for files in (self.changelogs, self.snapshots):
            yield from (path for number, path in files.items() if number > version)

    def damaged_snapshots(self, version: int) -> list[Path]:
        """Return the damaged snapshots of this and earlier versions. Spark would try to load them
        before an older, intact snapshot.
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
        """Yield the files that a snapshot names. If it is unreadable, yield the path of a missing file, so
        that the snapshot counts as damaged.
        """
        try:
            with zipfile.ZipFile(snapshot) as archive:
                # A line with the version, then JSON.
                metadata: dict[str, Any] = json.loads(archive.read(_METADATA).partition(b"\n")[2])
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            yield snapshot.with_suffix(".unreadable")
            return
        for list_key, folder, name_key in _SHARED_LISTS:
            yield from (self.folder / folder / file[name_key] for file in metadata.get(list_key) or ())


def state_stores(spark: Path) -> list[StateStore]:
    """Return the stores of Spark's checkpoint in the folder `spark`: one for each operator and partition."""
    return [StateStore(path) for path in sorted(spark.glob("state/*/*")) if path.name.isdigit()]


def remove_torn_state(files: Files) -> list[Path]:
    """Remove the damaged files of versions after the last committed batch, and return their paths.

    No batch may be running. Only a local checkpoint is checked.

    A batch that was interrupted may leave such a file. The batch runs again, but on a local disk Spark keeps
    the existing file: the rename of the new one fails, and Spark ignores that
    (FileSystemBasedCheckpointFileManager of Spark 4.2).
    """
    if files.local_path is None:
        return []
    version = last_batch(files, "commits") + 1
    torn = [
        path
        for store in state_stores(files.local_path / SPARK)
        for path in store.newer(version)
        if not is_intact(path)
    ]
    for path in torn:
        for name in (path.name, f".{path.name}.crc"):
            files.remove(str(path.with_name(name).relative_to(files.local_path)))
    return torn


# The search for damaged files of Spark's checkpoint, because Spark's own errors do not name them.
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
    if files.local_path is None:
        return []
    checkpoint = files.local_path / SPARK
    committed = last_batch(files, "commits")
    return [
        *_describe_unreadable(checkpoint, committed),
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


def _describe_unreadable(checkpoint: Path, committed: int) -> Iterator[str]:
    """Yield the fault of each file that cannot be read or does not match its checksum."""
    for checksum_file in sorted(checkpoint.rglob(".*.crc")):
        path = checksum_file.with_name(checksum_file.name.removeprefix(".").removesuffix(".crc"))
        # A name that begins with a dot is that of a temporary file left by a crash.
        if path.name.startswith(".") or _is_superseded(path, checkpoint, committed):
            continue
        try:
            expected, content = checksum_file.read_bytes(), path.read_bytes()
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
    is_of_a_log = path.parent.parent == checkpoint  # `<checkpoint>/<log>/<batch>`
    if is_of_a_log:
        return number < committed
    snapshots = [int(file.stem) for file in path.parent.glob("*.zip") if file.stem.isdigit()]
    needed_snapshot = max((version for version in snapshots if version <= committed + 1), default=0)
    return number < needed_snapshot


def _matches(content: bytes, checksum_file: bytes) -> bool:
    """Return True if the content of a file matches that of its checksum file, or if the latter is damaged."""
    if len(checksum_file) < _HEADER_BYTES or not checksum_file.startswith(_MAGIC):
        return True  # in this case Hadoop logs a warning and reads the file
    (part_bytes,) = struct.unpack(">I", checksum_file[len(_MAGIC) : _HEADER_BYTES])
    parts = (content[i : i + part_bytes] for i in range(0, len(content), part_bytes))
    return b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts) == checksum_file[_HEADER_BYTES:]


def _missing_changelogs(checkpoint: Path) -> Iterator[Path]:
    """Yield the missing changelogs of each state store, between its newest changelog and the last snapshot
    before that.
    """
    for store in state_stores(checkpoint):
        newest_changelog = max(store.changelogs, default=0)
        snapshots = (version for version in store.snapshots if version <= newest_changelog)
        for version in range(max(snapshots, default=0) + 1, newest_changelog):
            if version not in store.changelogs:
                yield store.folder / f"{version}.changelog"
