"""The files of an observer's output folder: each batch once, however often it runs, and few files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_why.local_files import FolderError, FolderNotWritable
from streaming.observing.output_folder import EVENTS, GROUPS, OutputFolder, OutputTable, claim_folder
from streaming.query.jvm import JAVA_OPTIONS, LOCAL_DIR, SOCKET_FOLDER, temporary_file_settings
from streaming.query.storage import FILE_CONTEXT, FILE_SYSTEM, storage_at
from tests.harness.disk_steps import record_disk_steps

DAY = "date=2026-11-26"
LATER = 1_000
"""A batch after all others."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


def write(
    root: Path, table: OutputTable, batch_id: int, *rows: tuple[str, str | None], day: str = DAY
) -> None:
    """Write a batch as Spark does: to the staging folder, and then to its place. Rows are ids and values."""
    folder = OutputFolder(root)
    folder.begin()
    staged = folder.staging / table.name / ("" if table.keys else day)
    staged.mkdir(parents=True)
    columns = {
        "group_id": pa.array([group_id for group_id, _ in rows], pa.string()),
        "value": pa.array([value for _, value in rows], pa.string()),
    }
    pq.write_table(pa.table(columns), staged / "part-00000-0d6.snappy.parquet")
    folder.move_batch(table, batch_id)


def rows(root: Path, table: OutputTable) -> list[tuple[str, str | None]]:
    """Return all rows of a table, as a reader finds them."""
    files = sorted((root / table.name).rglob("*.parquet"))
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return [(row["group_id"], row["value"]) for row in found]


def files(root: Path, table: OutputTable) -> list[str]:
    return sorted(str(path.relative_to(root / table.name)) for path in (root / table.name).rglob("*.parquet"))


def test_write_syncs_the_file_and_every_new_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = record_disk_steps(monkeypatch)
    write(root, EVENTS, 7, ("g", "1"))
    made = [*(f"make {EVENTS.name}", "sync out"), *(f"make {DAY}", f"sync {EVENTS.name}")]
    file = ["sync part-00000-0d6.snappy.parquet", "name batch-000000000007.parquet", f"sync {DAY}"]
    assert steps[-7:] == [*made, *file]


def test_rerun_batch_replaces_its_file_and_partial_files_are_discarded(root: Path) -> None:
    """A batch without rows has no file."""
    staging = OutputFolder(root).staging / EVENTS.name / DAY
    staging.mkdir(parents=True)
    (staging / "part-0.parquet").write_bytes(b"cut off")
    for _ in range(2):
        write(root, EVENTS, 7, ("g", "1"), ("g", "2"))
    assert rows(root, EVENTS) == [("g", "1"), ("g", "2")]
    assert files(root, EVENTS) == [f"{DAY}/batch-000000000007.parquet"]
    write(root, GROUPS, 1)
    assert not (root / "groups").exists()
    OutputFolder(root).merge(LATER)
    assert rows(root, EVENTS) == [("g", "1"), ("g", "2")], "there is nothing to merge"


def test_merge_keeps_every_entry_under_its_date(root: Path) -> None:
    for batch in range(5):
        write(root, EVENTS, batch, ("g", f"{batch}"))
    write(root, EVENTS, 5, ("g", "later"), day="date=2026-11-27")
    OutputFolder(root).merge(LATER)
    assert files(root, EVENTS) == [
        f"{DAY}/to-000000000004.parquet",
        "date=2026-11-27/batch-000000000005.parquet",
    ]
    assert rows(root, EVENTS) == [*(("g", f"{batch}") for batch in range(5)), ("g", "later")]


def test_merge_keeps_latest_views_and_drops_ended_groups(root: Path) -> None:
    write(root, GROUPS, 0, ("a", "a0"), ("b", "b0"), ("c", "c0"))
    write(root, GROUPS, 1, ("a", "a1"), ("b", None))
    OutputFolder(root).merge(LATER)
    assert rows(root, GROUPS) == [("c", "c0"), ("a", "a1")]
    write(root, GROUPS, 2, ("b", "b2"), ("c", None))
    OutputFolder(root).merge(LATER)
    assert files(root, GROUPS) == ["to-000000000002.parquet"]
    assert sorted(rows(root, GROUPS)) == [("a", "a1"), ("b", "b2")]


@pytest.mark.parametrize("table", [EVENTS, GROUPS])
def test_interrupted_merge_leaves_no_duplicate_rows(root: Path, table: OutputTable) -> None:
    """The merged file is there, and those that it is made of are not removed yet."""
    for batch in range(3):
        write(root, table, batch, (f"g{batch}", "v"))
    folder = root / table.name / ("" if table.keys else DAY)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    OutputFolder(root).merge(LATER)
    for path, content in before.items():
        path.write_bytes(content)
    write(root, table, 3, ("g3", "v"))
    OutputFolder(root).merge(LATER)
    assert sorted(rows(root, table)) == [(f"g{batch}", "v") for batch in range(4)]
    assert len(files(root, table)) == 1


def test_rerun_batch_is_merged_only_after_its_commit(root: Path) -> None:
    for batch in range(3):
        write(root, EVENTS, batch, ("g", f"{batch}"))
    OutputFolder(root).merge(2)
    write(root, EVENTS, 2, ("g", "2"))
    assert sorted(rows(root, EVENTS)) == [("g", "0"), ("g", "1"), ("g", "2")]


def test_output_folder_belongs_to_one_checkpoint(root: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    claim_folder(root, data)
    write(root, EVENTS, 0, ("g", "1"))
    claim_folder(root, data)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(FolderError, match="is not empty, and not this observer's: give another --output-dir"):
        claim_folder(root, other)


@pytest.mark.parametrize("before", ["topics", "folder"])
def test_checkpoint_writes_to_only_one_output(root: Path, tmp_path: Path, before: str) -> None:
    data = tmp_path / "data"
    (data / "spark" / "commits").mkdir(parents=True)
    if before == "folder":
        claim_folder(tmp_path / "first", data)
    (data / "spark" / "commits" / "0").touch()
    with pytest.raises(FolderError, match=r"has written to .*: give another --data-dir"):
        claim_folder(root, data)


def test_jvm_and_state_stores_use_the_emptied_temporary_folder(tmp_path: Path) -> None:
    """Files of a killed JVM are removed. Executors on other machines have folders of their own."""
    folder = tmp_path / "with a space"
    left = folder / "spark-1" / "state"
    left.mkdir(parents=True)
    (left / "1.sst").touch()
    given = {JAVA_OPTIONS: "-Xmx2g", "spark.ui.enabled": "false"}
    found = temporary_file_settings(folder, given, is_local=True)
    assert found[JAVA_OPTIONS] == f'"-Djava.io.tmpdir={folder}" -Xmx2g'
    assert (found[LOCAL_DIR], found["spark.ui.enabled"]) == (str(folder), "false")
    assert list(folder.iterdir()) == []
    assert LOCAL_DIR not in temporary_file_settings(folder, {}, is_local=False)


def test_users_temporary_folder_settings_are_kept(tmp_path: Path) -> None:
    given = {LOCAL_DIR: "/mnt/fast", SOCKET_FOLDER: "/run/sockets"}
    assert temporary_file_settings(tmp_path, given, is_local=True).items() >= given.items()


@pytest.mark.parametrize(("length", "is_long"), [(1, False), (8, False), (9, True), (70, True)])
def test_socket_folder_is_moved_if_its_paths_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, length: int, is_long: bool
) -> None:
    """A path that is not absolute is made so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("streaming.query.jvm.SOCKET_FOLDER_MAX_BYTES", len(str(tmp_path / ("x" * 8))))
    found = temporary_file_settings(Path("x" * length), {}, is_local=True)
    assert found[LOCAL_DIR] == str(tmp_path / ("x" * length))
    assert (SOCKET_FOLDER in found) == is_long


@pytest.mark.parametrize(("system", "elsewhere"), [("/run/user/1", "/run/user/1"), ("/" + "t" * 63, "/tmp")])
def test_moved_socket_folder_is_short_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, elsewhere: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", system)
    found = temporary_file_settings(tmp_path / ("x" * 63), {}, is_local=True)
    assert found[SOCKET_FOLDER] == elsewhere


def test_temporary_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderNotWritable, match="cannot be written: Not a directory"):
        temporary_file_settings(tmp_path / "file" / "tmp", {}, is_local=True)


@pytest.mark.parametrize(
    ("place", "path", "file_manager", "has_atomic_rename"),
    [
        ("data/checkpoint", Path("data/checkpoint"), FILE_SYSTEM, False),
        ("/mnt/shared", Path("/mnt/shared"), FILE_SYSTEM, False),
        ("file:///mnt/shared", Path("/mnt/shared"), FILE_SYSTEM, False),
        ("C:x", Path("C:x"), FILE_SYSTEM, False),
        # A file system with a name node renames in one step, an object store does not.
        ("hdfs://name-node:8020/coordinator/", None, FILE_CONTEXT, True),
        ("hdfs:///c", None, FILE_CONTEXT, True),
        ("abfss://c@a.example/x", None, FILE_CONTEXT, True),
        ("s3a://bucket/coordinator", None, FILE_SYSTEM, False),
        ("gs://bucket/coordinator", None, FILE_SYSTEM, False),
    ],
)
def test_checkpoint_location_selects_its_storage(
    place: str, path: Path | None, file_manager: str, has_atomic_rename: bool
) -> None:
    storage = storage_at(place)
    assert (storage.path, storage.file_manager) == (path, file_manager)
    assert storage.has_atomic_rename is has_atomic_rename
    assert path is not None or storage.uri == place.rstrip("/")


@pytest.mark.parametrize("place", ["s3a:///coordinator", "file://host/path"])
def test_checkpoint_url_without_a_host_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="host"):
        storage_at(place)
