"""The kinds of storage for a checkpoint, and Spark's file manager for each.

The file manager renames each new file of `offsets` or `commits`. By this rename, which must fail if the file
exists, Spark detects a second driver on the same checkpoint. Sources: Spark's CheckpointFileManager, Hadoop's
"The FileSystem contract" and "Introducing S3A".
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from checkpoints.metadata import Files
from kafka_why.local_files import FolderError, FolderNotWritable, LocalFiles

# Files that Hadoop reaches by a URI, such as hdfs:// or s3a://, through Spark's JVM.
#
# So a coordinator needs no other storage client, and Spark's checkpoint and the other files have the same
# settings (`spark.hadoop.*`) and credentials.


_NOT_FOUND = "java.io.FileNotFoundException"


class HadoopFiles:
    """A folder of a Hadoop file system (`checkpoints.metadata.Files`).

    If `has_atomic_rename`, as on HDFS, a file is written under a temporary name and then renamed. Otherwise
    it is written under its final name, because object stores show a file only when it is complete. `spark`
    returns the current Spark session, which changes at a restart. Methods raise Py4JError if Spark does not
    run.
    """

    def __init__(self, spark: Callable[[], SparkSession], uri: str, *, has_atomic_rename: bool) -> None:
        self.uri = uri.rstrip("/")
        self._has_atomic_rename = has_atomic_rename
        self._spark = spark
        self._cached_system: tuple[SparkContext, Any] | None = None
        try:
            _ = self._system  # this fails if the URI or its settings are wrong
        except Py4JJavaError as error:
            raise FolderError(f"{uri} cannot be used: {_first_line_of(error)}") from None

    @property
    def _context(self) -> Any:
        return self._spark().sparkContext

    @property
    def _jvm(self) -> Any:
        return self._context._jvm

    @property
    def _conf(self) -> Any:
        return self._context._jsc.hadoopConfiguration()

    @property
    def _system(self) -> Any:
        """The FileSystem object of the current JVM."""
        context = self._context
        if self._cached_system is None or self._cached_system[0] is not context:
            self._cached_system = context, self._path("").getFileSystem(self._conf)
        return self._cached_system[1]

    @property
    def local_path(self) -> Path | None:
        """None, because the folder is remote."""
        return None

    def read(self, name: str) -> bytes:
        try:
            with closing(self._system.open(self._path(name))) as stream:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        except Py4JJavaError as error:
            if _NOT_FOUND in _java_class(error):
                raise FileNotFoundError(f"{self.uri}/{name}") from None
            raise FolderError(f"{self.uri}/{name} cannot be read: {_first_line_of(error)}") from None

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        try:
            if not self._has_atomic_rename:
                self._create(path, content)
                return
            temporary = self._path(f"{name}.{uuid4().hex}.new")
            self._create(temporary, content)
            self._rename(temporary, path, "OVERWRITE")
        except Py4JJavaError as error:
            raise FolderNotWritable(f"{self.uri}/{name} cannot be written: {_first_line_of(error)}") from None

    def create(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        try:
            if not self._has_atomic_rename:
                if self._system.exists(path):
                    return False
                self._create(path, content)
                return True
            temporary = f"{name}.{uuid4().hex}.new"
            self._create(self._path(temporary), content)
            if self._rename_unless_exists(temporary, name):
                return True
            self.remove(temporary)
        except Py4JJavaError as error:
            raise FolderNotWritable(f"{self.uri}/{name} cannot be written: {_first_line_of(error)}") from None
        return False

    def names(self, folder: str) -> list[str]:
        try:
            return [status.getPath().getName() for status in self._system.listStatus(self._path(folder))]
        except Py4JJavaError as error:
            if _NOT_FOUND in _java_class(error):
                return []
            raise FolderError(f"{self.uri}/{folder} cannot be listed: {_first_line_of(error)}") from None

    def remove(self, name: str) -> None:
        try:
            self._system.delete(self._path(name), False)
        except Py4JJavaError as error:
            raise FolderNotWritable(f"{self.uri}/{name} cannot be removed: {_first_line_of(error)}") from None

    def check(self) -> None:
        """Check that a file can be written, found and replaced. Raises FolderError.

        With `has_atomic_rename`, also check that a plain rename does not replace a file. Spark detects a
        second driver by that.
        """
        probe = f".probe-{uuid4().hex}"
        try:
            self.write(probe, b"first")
            self.write(probe, b"second")
            if self.read(probe) != b"second" or probe not in self.names(""):
                raise FolderError(f"{self.uri} does not show a file as it was last written")
            if self._has_atomic_rename:
                self.write(f"{probe}.other", b"third")
                if self._rename_unless_exists(f"{probe}.other", probe):
                    raise FolderError(f"{self.uri} renames over a file, so it cannot keep a checkpoint")
        finally:
            with suppress(FolderNotWritable):  # the error above says what is wrong
                self.remove(probe)
                self.remove(f"{probe}.other")

    def _rename_unless_exists(self, old_name: str, new_name: str) -> bool:
        """Rename a file and return True, or return False if a file has the new name. Raises FolderError."""
        try:
            self._rename(self._path(old_name), self._path(new_name), "NONE")
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in _java_class(error):
                return False
            raise FolderError(f"{self.uri} cannot rename a file: {_first_line_of(error)}") from None
        return True

    def _create(self, path: Any, content: bytes) -> None:
        with closing(self._system.create(path, True)) as stream:
            stream.write(bytearray(content))

    def _rename(self, source: Any, target: Any, option: str) -> None:
        """Rename a file with a value of Hadoop's Options.Rename: OVERWRITE, or NONE to keep an existing
        target.
        """
        # FileContext, because a rename of FileSystem has no options.
        rename_enum = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        options = self._context._gateway.new_array(rename_enum, 1)
        options[0] = getattr(rename_enum, option)
        uri = self._system.makeQualified(target).toUri()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(uri, self._conf)
        context.rename(source, target, options)

    def _path(self, name: str) -> Any:
        """Return Hadoop's Path of a file in the folder, or of the folder itself if `name` is empty."""
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}" if name else self.uri)


def _java_class(error: Py4JJavaError) -> str:
    """Return the name of the Java exception's class."""
    return str(error.java_exception.getClass().getName())


def _first_line_of(error: Py4JJavaError) -> str:
    """Return the Java exception's class and message without its stack trace."""
    return str(error.java_exception.toString()).partition("\n")[0]


_PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"
# Writes through FileSystem. On a local disk FileContext, the default, starts some 30 processes a batch.
FILE_SYSTEM = f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
# Its rename is one step of the name node, and fails if the file exists.
FILE_CONTEXT = f"{_PACKAGE}.FileContextBasedCheckpointFileManager"
# The schemes of object stores, where a rename is a copy. A file appears under its name when it is complete.
OBJECT_STORES = ("s3a", "gs", "oss", "cosn")
_DRIVE_CHARS = 1  # of the drive in a Windows path, which urlsplit takes for a scheme

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a checkpoint."""

    uri: str  # a URI, or a path if it is on this machine
    path: Path | None  # None if it is on other machines
    scheme: str  # of the URI, "" for a path

    @property
    def has_atomic_rename(self) -> bool:
        """True if renaming a file only if the new name is free is atomic."""
        # Spark checks and then renames on a local path, and object stores copy.
        return self.path is None and self.scheme not in OBJECT_STORES

    @property
    def file_manager(self) -> str:
        """The class of Spark's file manager for this storage."""
        return FILE_CONTEXT if self.has_atomic_rename else FILE_SYSTEM

    def open(self, spark: Callable[[], SparkSession]) -> Files:
        """Return the files of this storage. Raises FolderError if the storage cannot hold a checkpoint.

        `spark` is called only for storage on other machines, and then at each use of the files.
        """
        if self.path is not None:
            return LocalFiles(self.path)
        files = HadoopFiles(spark, self.uri, has_atomic_rename=self.has_atomic_rename)
        files.check()
        if not self.has_atomic_rename:
            log.warning(
                "the checkpoint is in a store without renames, so each batch takes longer", at=self.uri
            )
        return files


def storage_at(place: str) -> Storage:
    """Return the storage at a path or URI. Raises ValueError."""
    parts = urlsplit(place)
    if len(parts.scheme) <= _DRIVE_CHARS:
        return Storage(place, Path(place), "")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{place} names another machine. A shared folder has a path on this one")
        path = Path(unquote(parts.path))
        return Storage(str(path), path, "")
    if not parts.netloc and parts.scheme != "hdfs":
        raise ValueError(f"{place} has no host or bucket")
    return Storage(place.rstrip("/"), None, parts.scheme)
