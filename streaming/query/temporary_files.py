"""The temporary files of Spark's JVM are in a folder of the coordinator, emptied before each start of a JVM.

A JVM that is killed leaves its temporary files: native libraries, some 15 MB, and a copy of the state. In
/tmp they would stay there for ever. The lock of the coordinator's folder ensures that no other JVM uses them.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kafka_why.folders import make_private_folder
from kafka_why.local_files import FolderNotWritable

LOCAL_DIR = "spark.local.dir"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
# Java takes 106 bytes of a Unix socket's path, Linux 107. The name of Spark's has 42, and a slash before it.
SOCKET_FOLDER_MAX_BYTES = 63
_SHORT_FOLDER = "/tmp"  # noqa: S108 - Spark gives each socket a random name


def keeping_temporary_files_in(folder: Path, spark: Mapping[str, str], *, is_local: bool) -> dict[str, str]:
    """Return these settings of Spark, with which the JVM keeps its temporary files in this folder; empty it.

    What the settings say themselves about temporary files holds. `is_local`: no executor runs elsewhere.
    Raises FolderNotWritable.
    """
    folder = folder.absolute()
    empty(folder)
    ours = {}
    if is_local:  # executors elsewhere have no such folder
        ours[LOCAL_DIR] = str(folder)
    if not _can_have_sockets(folder):
        system = Path(tempfile.gettempdir())
        ours[SOCKET_FOLDER] = str(system if _can_have_sockets(system) else _SHORT_FOLDER)
    options = [f'"-Djava.io.tmpdir={folder}"', spark.get(JAVA_OPTIONS, "")]  # of two, the last one holds
    return ours | dict(spark) | {JAVA_OPTIONS: " ".join(filter(None, options))}


def _can_have_sockets(folder: Path) -> bool:
    return len(os.fsencode(folder)) <= SOCKET_FOLDER_MAX_BYTES


def empty(folder: Path) -> None:
    """Empty the folder, or make it. No JVM may use it. Raises FolderNotWritable."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        make_private_folder(folder)
    except OSError as error:
        raise FolderNotWritable(f"{folder} cannot be written: {error.strerror}") from error
