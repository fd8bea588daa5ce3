"""Folders for records, states and logs. Only the user who runs the coordinator may enter them."""

import errno
import os
import stat
from pathlib import Path

import structlog

DEFAULT_DATA_DIR = Path(".data")
"""What commands keep, relative to the working directory. Git ignores it."""

PRIVATE_UMASK = 0o077
"""The umask of a child process that writes records."""

log = structlog.get_logger()


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, so that a power loss leaves
    them. Raises OSError.

    A folder that exists keeps its mode.
    """
    if path.is_dir():
        return
    if not path.parent.exists():
        make_private_folder(path.parent)
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    sync(path.parent)


def warn_if_open(path: Path) -> None:
    """Log a warning if other users of this machine can enter the folder. Raises OSError."""
    if path.stat().st_mode & stat.S_IXOTH:
        log.warning("other users can enter a data folder", folder=str(path), private_by=f"chmod 700 {path}")


def sync(path: Path) -> None:
    """Write a file's content to the disk, or a folder's names: those of new, renamed and linked files.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
