"""Whether a file has changed since it was read."""

from pathlib import Path


def signature(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content, None if the file is not there.

    Kubernetes replaces a file by one of another inode. A copy may keep the time of its original.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
