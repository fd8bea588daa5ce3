"""A process and its descendants."""

import subprocess
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    pids = [pid]
    for parent in pids:  # the list grows during the loop
        pids += children.get(parent, [])
    return pids


def _parents() -> list[tuple[int, int]]:
    """Return (process id, parent's process id) of all processes."""
    if Path("/proc/self/stat").exists():
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # the process has ended meanwhile
                # The name, in parentheses, may contain any text; the parent is the second field after it.
                after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
                found.append((int(stat.parent.name), int(after_name[1])))
        return found
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)  # noqa: S607
    return [(int(pid), int(parent)) for pid, parent in map(str.split, listing.stdout.splitlines())]
