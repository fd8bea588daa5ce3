"""Checks for space on the disks that a batch or the embedded broker writes to."""

import errno
from collections.abc import Iterable
from pathlib import Path

# A batch writes less than this into the checkpoint, unless thousands of groups change in it.
SPACE_NEEDED_BYTES = 1024 * 1024
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROBE = ".space"


def describe_full_disk(folders: Iterable[Path]) -> str | None:
    """Return a sentence about the first folder that cannot take `SPACE_NEEDED_BYTES` more, None if all can.

    A folder that does not exist is skipped, because space would not help.
    The check writes and frees the space instead of reading the free space, because only a write respects
    quotas and limits of the process.
    """
    for folder in folders:
        try:
            _write_and_remove(folder / _PROBE)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in _NO_SPACE:
                return f"the disk is full: {folder} cannot take {SPACE_NEEDED_BYTES} bytes: {error.strerror}"
            return f"{folder} cannot be written: {error.strerror}"
    return None


def _write_and_remove(path: Path) -> None:
    try:
        path.write_bytes(bytes(SPACE_NEEDED_BYTES))
    finally:
        path.unlink(missing_ok=True)
