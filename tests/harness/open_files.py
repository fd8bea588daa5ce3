"""The files, pipes and sockets that this process has open."""

from pathlib import Path


def open_files() -> list[str]:
    """Return what the descriptors of this process refer to, as Linux names it."""
    return sorted(str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
