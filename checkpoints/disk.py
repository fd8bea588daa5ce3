"""Whether there is space on the disks that a batch, or the embedded broker, writes to."""

import errno
from collections.abc import Iterable
from pathlib import Path

# What one batch writes in the checkpoint is less than this, unless thousands of groups change in it.
SPACE_NEEDED_BYTES = 1024 * 1024
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROBE = ".space"


def describe_full_disk(folders: Iterable[Path]) -> str | None:
    """Which of the folders cannot take `SPACE_NEEDED_BYTES` more, in a sentence; None where all of them can.

    A folder that does not exist is passed over: space would not help.
    The space is not looked up but written and freed: only that respects quotas and limits of the process.
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
