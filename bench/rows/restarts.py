"""The time of a restart and the size of the state, with more and more resting groups of one member."""

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import msgspec
from msgspec import Struct

from bench.load.requests import Membership
from bench.load.topics import TopicsClient
from bench.memory import MIB
from bench.report import Figure, Plot, Series, say
from bench.rows.bench import NO_DELAY_MS, Bench, RowResult
from bench.rows.restart import restart_s
from bench.systems import ON_TOPICS, PREFIX, RunningSystems, size_of

GROUPS, QUICK_GROUPS = (1_000, 10_000, 100_000), (1_000, 5_000)
RESTARTS, QUICK_RESTARTS = 3, 1
_AT_ONCE = 20_000
_POLL_S = 1.0
# A snapshot follows 200 batches, and Spark uploads it within a minute.
_SNAPSHOT_TIMEOUT_S = 300.0


class _SstFile(Struct, rename="camel"):
    size_bytes: int


class _Metadata(Struct, rename="camel"):
    sst_files: list[_SstFile]


_decode = msgspec.json.Decoder(_Metadata).decode


@dataclass
class StateSize:
    """The bytes of the whole checkpoint and of the newest snapshot of the state, with `groups` groups."""

    groups: int
    checkpoint_bytes: int
    snapshot_bytes: int


def measure(bench: Bench) -> RowResult:
    """Form groups, let Spark write a snapshot, and restart the coordinator. Repeat it with more groups."""
    processes, is_quick = bench.new_systems(NO_DELAY_MS), bench.plan.is_quick
    row, sizes, restarts_by_size = RowResult(), [], []
    formed = 0
    for groups in QUICK_GROUPS if is_quick else GROUPS:
        member = bench.call_in_process(form, processes.running, groups - formed)
        formed = groups
        size = await_snapshot(processes.running, groups)
        sizes.append(size)
        restarts_s = []
        for turn in range(QUICK_RESTARTS if is_quick else RESTARTS):
            restarts_s.append(restart_s(bench, processes, member)[1])
            say(f"    {groups:,} groups, restart {turn + 1}: {restarts_s[-1]:.1f} s")
        restarts_by_size.append(restarts_s)
        what = f"{groups:,} groups"
        row.figures += [
            Figure(f"{what}: restart to the first response", "s", restarts_s),
            Figure(f"{what}: a snapshot of the state", "MiB", [size.snapshot_bytes / MIB]),
            Figure(f"{what}: a snapshot of the state for each group", "B", [size.snapshot_bytes / groups]),
            Figure(f"{what}: the whole checkpoint", "MiB", [size.checkpoint_bytes / MIB]),
        ]
    x = [float(size.groups) for size in sizes]
    series = [
        Series("restart to the first response, s", x, [min(seconds) for seconds in restarts_by_size]),
        Series("snapshot, MiB", x, [size.snapshot_bytes / MIB for size in sizes]),
        Series("checkpoint, MiB", x, [size.checkpoint_bytes / MIB for size in sizes]),
    ]
    title = "Restart and size of the state"
    row.plots = [Plot("restarts", title, "groups", "", series, log_x=True, log_y=True)]
    return row


def form(systems: RunningSystems, groups: int) -> Membership:
    """Form this many more groups, and return a member of one of them."""
    with TopicsClient(systems.servers, PREFIX, packed=True) as client, systems.run_only(ON_TOPICS):
        began_s = time.monotonic()
        members = []
        for first in range(0, groups, _AT_ONCE):
            names = [f"rests-{uuid.uuid4()}" for _ in range(min(_AT_ONCE, groups - first))]
            members = client.form_groups(names)
        say(f"    {groups:,} groups more after {time.monotonic() - began_s:.0f} s")
        return members[0]


def await_snapshot(systems: RunningSystems, groups: int) -> StateSize:
    """Wait for a snapshot of the state with all groups. Raises TimeoutError."""
    # A snapshot's number is the version of the state, one more than the batch that made it.
    last = systems.last_batch()
    deadline_s = time.monotonic() + _SNAPSHOT_TIMEOUT_S
    while not (snapshots := [path for path in _snapshots(systems) if int(path.stem) > last]):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no snapshot of the state after batch {last}")
        time.sleep(_POLL_S)
    files = systems.checkpoint.parent.rglob("*")
    return StateSize(
        groups,
        sum(size_of(path) for path in files if path.name != "spark.log"),
        snapshot_bytes(max(snapshots, key=lambda path: int(path.stem))),
    )


def snapshot_bytes(path: Path) -> int:
    """Return the size of a snapshot: this file, and the files of RocksDB that it names.

    A file of RocksDB may belong to several snapshots. Source: RocksDBCheckpointMetadata of Spark.
    """
    with ZipFile(path) as snapshot:
        _, metadata = snapshot.read("metadata").splitlines()
    return size_of(path) + sum(file.size_bytes for file in _decode(metadata).sst_files)


def _snapshots(systems: RunningSystems) -> list[Path]:
    return [path for path in (systems.checkpoint / "state").rglob("*.zip") if path.stem.isdigit()]
