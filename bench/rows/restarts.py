"""A restart, and the size of the state, with more and more resting groups of one member each."""

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
from bench.rows.bench import AT_ONCE_MS, Bench, Found
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
class Sized:
    """The bytes on disk with so many groups: the whole checkpoint, and the newest snapshot of the state."""

    groups: int
    checkpoint_bytes: int
    snapshot_bytes: int


def measure(bench: Bench) -> Found:
    """Form groups, let Spark write a snapshot, and restart; then with more groups."""
    running, is_quick = bench.new_systems(AT_ONCE_MS), bench.plan.is_quick
    found, sizes, points = Found(), [], []
    formed = 0
    for groups in QUICK_GROUPS if is_quick else GROUPS:
        member = bench.load(form, running.world, groups - formed)
        formed = groups
        sized = await_snapshot(running.world, groups)
        sizes.append(sized)
        answered_s = []
        for turn in range(QUICK_RESTARTS if is_quick else RESTARTS):
            answered_s.append(restart_s(bench, running, member)[1])
            say(f"    {groups:,} groups, restart {turn + 1}: {answered_s[-1]:.1f} s")
        points.append(answered_s)
        what = f"{groups:,} groups"
        found.figures += [
            Figure(f"{what}: restart to the first response", "s", answered_s),
            Figure(f"{what}: a snapshot of the state", "MiB", [sized.snapshot_bytes / MIB]),
            Figure(f"{what}: a snapshot of the state for each group", "B", [sized.snapshot_bytes / groups]),
            Figure(f"{what}: the whole checkpoint", "MiB", [sized.checkpoint_bytes / MIB]),
        ]
    x = [float(sized.groups) for sized in sizes]
    series = [
        Series("restart to the first response, s", x, [min(seconds) for seconds in points]),
        Series("snapshot, MiB", x, [sized.snapshot_bytes / MIB for sized in sizes]),
        Series("checkpoint, MiB", x, [sized.checkpoint_bytes / MIB for sized in sizes]),
    ]
    title = "Restart and size of the state"
    found.plots = [Plot("restarts", title, "groups", "", series, log_x=True, log_y=True)]
    return found


def form(world: RunningSystems, groups: int) -> Membership:
    """Form this many more groups. Return the member of one."""
    with TopicsClient(world.servers, PREFIX, packed=True) as client, world.alone(ON_TOPICS):
        began_s = time.monotonic()
        members = []
        for first in range(0, groups, _AT_ONCE):
            names = [f"rests-{uuid.uuid4()}" for _ in range(min(_AT_ONCE, groups - first))]
            members = client.form(names)
        say(f"    {groups:,} groups more after {time.monotonic() - began_s:.0f} s")
        return members[0]


def await_snapshot(world: RunningSystems, groups: int) -> Sized:
    """Wait for a snapshot of the state with all groups. Raises TimeoutError."""
    last = world.last_batch()
    give_up_s = time.monotonic() + _SNAPSHOT_TIMEOUT_S
    while not (snapshots := [path for path in _snapshots(world) if int(path.stem) > last]):
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"no snapshot of the state after batch {last}")
        time.sleep(_POLL_S)
    whole = world.checkpoint.parent.rglob("*")
    return Sized(
        groups,
        sum(size_of(path) for path in whole if path.name != "spark.log"),
        snapshot_bytes(max(snapshots, key=lambda path: int(path.stem))),
    )


def snapshot_bytes(path: Path) -> int:
    """Return the size of a snapshot: this file, and those of RocksDB that it names.

    They are beside it and may belong to several snapshots. Source: RocksDBCheckpointMetadata of Spark.
    """
    with ZipFile(path) as snapshot:
        _, metadata = snapshot.read("metadata").splitlines()
    return size_of(path) + sum(file.size_bytes for file in _decode(metadata).sst_files)


def _snapshots(world: RunningSystems) -> list[Path]:
    return [path for path in (world.checkpoint / "state").rglob("*.zip") if path.stem.isdigit()]
