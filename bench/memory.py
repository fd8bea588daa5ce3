"""The memory of a coordinator's processes, and the heap of Spark's JVM after a collection."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from cli.processes.child import family
from embedded.java import find_java

# The parts of a coordinator.
DRIVER, JVM, WORKERS, REPLICA = "driver", "Spark's JVM", "Python workers", "replica"
JCMD_TIMEOUT_S = 60.0
MIB = 1024 * 1024


def memory_bytes(pids: Sequence[int]) -> int:
    """Return the resident anonymous memory of these processes. A page that n processes share counts 1/n.

    Pages of programs and libraries do not count, because other processes use the same files.
    """
    total_kib = 0
    for pid in pids:
        with suppress(OSError):  # the process has ended meanwhile
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total_kib += int(rollup.partition("\nPss_Anon:")[2].split()[0])
    return total_kib * 1024


def parts_of(coordinator: int) -> dict[str, list[int]]:
    """Return the ids of a coordinator's processes by part. In `local` mode Spark's JVM is the executor."""
    parts: dict[str, list[int]] = {DRIVER: [coordinator], JVM: [], WORKERS: [], REPLICA: []}
    for pid in family(coordinator)[1:]:
        with suppress(OSError):
            parts[_part_of(Path(f"/proc/{pid}/cmdline").read_bytes())].append(pid)
    return parts


def _part_of(command_line: bytes) -> str:
    if command_line.partition(b"\0")[0].endswith(b"java"):
        return JVM
    return REPLICA if b"\0streaming.replica\0" in command_line else WORKERS


def heap_after_collection_bytes(jvm: int) -> int | None:
    """Collect all garbage of a JVM. Return the heap still in use, or None if this Java has no jcmd."""
    jcmd, jstat = (find_java().with_name(tool) for tool in ("jcmd", "jstat"))
    if not (jcmd.exists() and jstat.exists()):
        return None
    _output(jcmd, str(jvm), "GC.run")
    names, values = (line.split() for line in _output(jstat, "-gc", str(jvm)).splitlines()[:2])
    # OU is the use of the old generation. Objects that survive a full collection are there.
    return round(float(dict(zip(names, values, strict=True))["OU"]) * 1024)


def growth(values: Sequence[float]) -> float:
    """Return the growth from the first quarter's median to the last one's, as a fraction of the first."""
    size = max(1, len(values) // 4)
    first, last = median(values[:size]), median(values[-size:])
    return last / first - 1


def _output(tool: Path, *arguments: str) -> str:
    process = subprocess.run(
        [str(tool), *arguments], capture_output=True, text=True, check=True, timeout=JCMD_TIMEOUT_S
    )
    return process.stdout
