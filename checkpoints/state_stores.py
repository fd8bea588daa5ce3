"""The files of Spark's state stores: which versions of the state can be loaded from them.

Version N + 1 is the state after batch N. It is loaded from a snapshot, `<version>.zip`, and the changelogs
after it, `<version>.changelog`. A snapshot names files in `SSTs` and `logs` that it shares with others.
Source: RocksDBFileManager of Spark 4.2.
"""

import json
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from checkpoints.damage import is_intact
from checkpoints.files import Files
from checkpoints.spark_logs import SPARK, last_batch

# The folder and the key of the name of the files that a snapshot's metadata lists.
_SHARED = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))
_METADATA = "metadata"


class StateStore:
    """The store of one partition of the state. Its files must not change meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changelogs = {int(path.stem): path for path in folder.glob("*.changelog") if path.stem.isdigit()}
        self.snapshots = {int(path.stem): path for path in folder.glob("*.zip") if path.stem.isdigit()}
        self.is_snapshot_intact = cache(self._is_snapshot_intact)
        self._is_changelog_intact = cache(lambda version: is_intact(self.changelogs[version]))

    def can_load(self, version: int) -> bool:
        """Whether this version can be loaded, from any intact snapshot and the changelogs after it."""
        while version > 0 and not (version in self.snapshots and self.is_snapshot_intact(version)):
            if version not in self.changelogs or not self._is_changelog_intact(version):
                return False
            version -= 1
        return True

    def newer(self, version: int) -> Iterator[Path]:
        """The snapshots and changelogs of later versions."""
        for files in (self.changelogs, self.snapshots):
            yield from (path for number, path in files.items() if number > version)

    def damaged_snapshots(self, version: int) -> list[Path]:
        """The damaged snapshots of this and earlier versions. Spark would load them before an older one."""
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
    """The stores of a checkpoint: one for each operator and partition."""
    folders = [path for path in sorted(spark.glob("state/*/*")) if path.name.isdigit()]
    return [StateStore(folder) for folder in folders]


def remove_torn_state(files: Files) -> list[Path]:
    """Remove the damaged files of versions after the last committed batch, and return them. No JVM may have a
    batch under way.

    Such a file was written by a batch that was cut off. The batch runs again, but Spark keeps a file that is
    there on a local disk: the rename of the new one does nothing there, and its outcome is not looked at
    (FileSystemBasedCheckpointFileManager of Spark 4.2). Only a local checkpoint is looked at.
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
