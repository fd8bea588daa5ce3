"""Where a checkpoint may be, and which of Spark's file managers writes it there.

The file manager decides how Spark finds a second driver on the same checkpoint: by the rename of a new file
of `offsets` or `commits`, which must fail if the file exists. Sources: Spark's CheckpointFileManager,
Hadoop's "The FileSystem contract" and "Introducing S3A".
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import structlog

from checkpoints.files import Files
from kafka_why.local_files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"
# Writes through FileSystem. On a local disk FileContext, the default, starts some 30 processes a batch.
FILE_SYSTEM = f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
# Its rename is one step of the name node, and fails if the file exists.
FILE_CONTEXT = f"{_PACKAGE}.FileContextBasedCheckpointFileManager"
# A rename copies there. A file appears when it is complete, under its own name.
OBJECT_STORES = ("s3a", "gs", "oss", "cosn")
_ONE_LETTER = 1

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Storage:
    """The place of a checkpoint. `path` is set if this machine reaches it by a path."""

    uri: str
    path: Path | None
    scheme: str

    @property
    def has_atomic_rename(self) -> bool:
        """Whether a rename that must not replace a file is one step there.

        On a local path it is a look and a rename; object stores copy.
        """
        return self.path is None and self.scheme not in OBJECT_STORES

    @property
    def file_manager(self) -> str:
        """The class of Spark's file manager for this place."""
        return FILE_CONTEXT if self.has_atomic_rename else FILE_SYSTEM

    def open(self, spark: "Callable[[], SparkSession]") -> Files:
        """The files of this place. Spark is asked for only if the place has no path, and then at each use.

        Raises FolderError if the place cannot keep a checkpoint.
        """
        if self.path is not None:
            return LocalFiles(self.path)
        from streaming.query.hadoop_files import HadoopFiles  # imports Spark, which takes a second

        files = HadoopFiles(spark, self.uri, renames=self.has_atomic_rename)
        files.check()
        if not self.has_atomic_rename:
            log.warning(
                "the checkpoint is in a store without renames, so each batch takes longer", at=self.uri
            )
        return files


def storage_at(place: str) -> Storage:
    """The storage at a path or URI. Raises ValueError."""
    parts = urlsplit(place)
    if len(parts.scheme) <= _ONE_LETTER:
        return Storage(place, Path(place), "")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{place} names another machine. A shared folder has a path on this one")
        path = Path(unquote(parts.path))
        return Storage(str(path), path, "")
    if not parts.netloc and parts.scheme != "hdfs":
        raise ValueError(f"{place} has no host or bucket")
    return Storage(place.rstrip("/"), None, parts.scheme)
