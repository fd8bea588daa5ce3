"""Which versions of a state can be loaded from a store's files."""

import json
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from checkpoints.spark_logs import (
    SPARK,
    PlannedBatch,
    SparkLogDamaged,
    read_next_watermark_ms,
    read_planned,
    rewrite_next_watermark_ms,
    rewrite_planned,
)
from checkpoints.state_stores import StateStore, describe_damage, remove_torn_state, state_stores
from kafka_why.local_files import LocalFiles


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """Return a checkpoint with snapshots of versions 3 and 6, and changelogs of versions 2 to 8."""
    store = tmp_path / "state" / "0" / "0"
    (store / "SSTs").mkdir(parents=True)
    for version in range(2, 9):
        write(store / f"{version}.changelog", b"changes" * version)
    for version in (3, 6):
        write(store / "SSTs" / f"0-{version}.sst", b"rows" * version)
        listed = {"sstFiles": [{"localFileName": "0.sst", "dfsSstFileName": f"0-{version}.sst"}]}
        with zipfile.ZipFile(store / "built", "w") as archive:
            archive.writestr("metadata", f"v1\n{json.dumps(listed)}")
        write(store / f"{version}.zip", (store / "built").read_bytes())
        (store / "built").unlink()
    (tmp_path / "state" / "0" / "_metadata").mkdir()
    return tmp_path


def store_of(spark: Path) -> StateStore:
    (store,) = state_stores(spark)
    return store


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def loadable(spark: Path) -> list[int]:
    store = store_of(spark)
    return [version for version in range(1, 10) if store.can_load(version)]


def test_a_version_needs_a_snapshot_and_the_changelogs_since(spark: Path) -> None:
    assert loadable(spark) == [3, 4, 5, 6, 7, 8], "the changelog of version 1 is gone"


def test_without_snapshots_a_version_needs_every_changelog(spark: Path) -> None:
    for path in spark.glob("state/0/0/*.zip"):
        path.unlink()
    assert loadable(spark) == []
    write(spark / "state" / "0" / "0" / "1.changelog", b"changes")
    assert loadable(spark) == list(range(1, 9))


def test_versions_after_a_damaged_changelog_cannot_be_loaded_until_a_snapshot(spark: Path) -> None:
    damage(spark / "state" / "0" / "0" / "5.changelog")
    assert loadable(spark) == [3, 4, 6, 7, 8]


@pytest.mark.parametrize("name", ["6.zip", "SSTs/0-6.sst"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_damaged_snapshot_falls_back_to_an_older_one(spark: Path, name: str, is_missing: bool) -> None:
    path = spark / "state" / "0" / "0" / name
    path.unlink() if is_missing else damage(path)
    assert loadable(spark) == [3, 4, 5, 6, 7, 8]
    is_there = (spark / "state" / "0" / "0" / "6.zip").exists()
    expected = [spark / "state" / "0" / "0" / "6.zip"] if is_there else []
    assert store_of(spark).damaged_snapshots(8) == expected
    assert store_of(spark).damaged_snapshots(5) == []


def test_files_of_later_versions_are_listed(spark: Path) -> None:
    assert {path.name for path in store_of(spark).newer(5)} == {
        "6.changelog",
        "7.changelog",
        "8.changelog",
        "6.zip",
    }


def test_damaged_files_of_an_uncommitted_batch_are_removed(tmp_path: Path, spark: Path) -> None:
    """Version 7 is of the last committed batch, 6. Its files, and intact ones, are kept."""
    (spark / "state").rename(make(tmp_path / SPARK) / "state")
    write(make(tmp_path / SPARK / "commits") / "6", b"{}")
    store = tmp_path / SPARK / "state" / "0" / "0"
    write(store / "9.changelog", b"changes")
    for version in (7, 8):
        damage(store / f"{version}.changelog")
    assert remove_torn_state(LocalFiles(tmp_path)) == [store / "8.changelog"]
    assert sorted(path.stem for path in store.glob("*.changelog")) == [*"2345679"]
    assert not (store / ".8.changelog.crc").exists()
    assert remove_torn_state(LocalFiles(tmp_path)) == []


METADATA = {"batchWatermarkMs": 900, "batchTimestampMs": 1_000, "conf": {"spark.sql.shuffle.partitions": "1"}}
KAFKA = PlannedBatch({0: 5, 1: 12}, 2_000, 3_000)


@pytest.fixture
def checkpoint(tmp_path: Path) -> LocalFiles:
    """Return a checkpoint whose batch 0 read a folder of files."""
    for log, lines in {
        "offsets": ["v1", json.dumps(METADATA), '{"logOffset":0}'],
        "commits": ["v1", '{"nextBatchWatermarkMs":950,"stateUniqueIds":{}}'],
    }.items():
        (tmp_path / "spark" / log).mkdir(parents=True)
        (tmp_path / "spark" / log / "0").write_text("\n".join(lines))
        (tmp_path / "spark" / log / ".0.crc").write_bytes(b"crc\0 of the file as Spark wrote it")
    return LocalFiles(tmp_path)


@pytest.mark.parametrize("batch", [0, 1])
def test_planned_batch_round_trips_with_sparks_pinned_settings(checkpoint: LocalFiles, batch: int) -> None:
    rewrite_planned(checkpoint, batch, KAFKA, "requests")
    assert read_planned(checkpoint, batch, "requests") == KAFKA
    written = (checkpoint.local_path / "spark" / "offsets" / str(batch)).read_text()
    version, metadata, source = written.splitlines()
    assert version == "v1"
    assert json.loads(metadata) == METADATA | {"batchWatermarkMs": 2_000, "batchTimestampMs": 3_000}
    assert json.loads(source) == {"requests": {"0": 5, "1": 12}}
    with pytest.raises(SparkLogDamaged, match=f"offsets/{batch} is damaged: KeyError"):
        read_planned(checkpoint, batch, "others")


def test_rewriting_the_next_watermark_changes_nothing_else(checkpoint: LocalFiles) -> None:
    assert read_next_watermark_ms(checkpoint, 0) == 950
    rewrite_next_watermark_ms(checkpoint, 0, 2_500)
    assert read_next_watermark_ms(checkpoint, 0) == 2_500
    assert '"stateUniqueIds":{}' in (checkpoint.local_path / "spark" / "commits" / "0").read_text()


@pytest.mark.parametrize(
    "content", ["", "v1", "v1\n{}\n{}", 'v1\n{"batchWatermarkMs":1}\n{"requests":{"0":1}}']
)
def test_damaged_spark_log_file_is_named(checkpoint: LocalFiles, content: str) -> None:
    for log in ("offsets", "commits"):
        (checkpoint.local_path / "spark" / log / "0").write_text(content)
    with pytest.raises(SparkLogDamaged, match="offsets/0 is damaged"):
        read_planned(checkpoint, 0, "requests")
    with pytest.raises(SparkLogDamaged, match="commits/0 is damaged"):
        read_next_watermark_ms(checkpoint, 0)


PART_BYTES = 512


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the folder of one state store, with a snapshot of version 2 and changelogs up to version 5."""
    store = tmp_path / "spark" / "state" / "0" / "0"
    store.mkdir(parents=True)
    write(store / "2.zip", bytes(3 * PART_BYTES))
    for version in range(2, 6):
        write(store / f"{version}.changelog", f"changes of {version}".encode() * 100)
    return store


def write(path: Path, content: bytes) -> None:
    """Write a file as Hadoop does, with its checksum file."""
    path.write_bytes(content)
    parts = [content[i : i + PART_BYTES] for i in range(0, len(content), PART_BYTES)]
    checksums = b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", PART_BYTES) + checksums)


def test_a_sound_checkpoint_has_no_damage(tmp_path: Path, store: Path) -> None:
    write(store / ".6.changelog.123.tmp", b"left by a crash")
    (store / ".6.changelog.123.tmp").write_bytes(b"left by a cr")
    assert describe_damage(LocalFiles(tmp_path)) == []


@pytest.mark.parametrize("at", [0, PART_BYTES - 1, PART_BYTES, -1])
def test_checkpoint_check_finds_a_changed_byte(tmp_path: Path, store: Path, at: int) -> None:
    path = store / "4.changelog"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert describe_damage(LocalFiles(tmp_path)) == [f"{path} does not match its checksum"]


@pytest.mark.parametrize("length", [0, 1, PART_BYTES, PART_BYTES + 1])
def test_checkpoint_check_finds_a_truncated_file(tmp_path: Path, store: Path, length: int) -> None:
    path = store / "2.zip"
    path.write_bytes(bytes(length))
    assert describe_damage(LocalFiles(tmp_path)) == [f"{path} does not match its checksum"]


def test_checkpoint_check_finds_a_missing_changelog(tmp_path: Path, store: Path) -> None:
    """Changelogs before the snapshot are not needed, and purged in time."""
    (store / "2.changelog").unlink()
    assert describe_damage(LocalFiles(tmp_path)) == []
    (store / "3.changelog").unlink()
    assert describe_damage(LocalFiles(tmp_path)) == [f"{store / '3.changelog'} is missing"]


def test_file_without_checksums_is_not_reported(tmp_path: Path, store: Path) -> None:
    (store / ".4.changelog.crc").write_bytes(b"")
    (store / ".5.changelog.crc").unlink()
    assert describe_damage(LocalFiles(tmp_path)) == []


def test_files_that_spark_no_longer_reads_are_not_reported(tmp_path: Path, store: Path) -> None:
    """The query continues without them. A service ends because of each file that is named."""
    commits = tmp_path / "spark" / "commits"
    commits.mkdir()
    for batch in range(3, 5):
        write(commits / str(batch), b"done")
    write(store / "4.zip", bytes(PART_BYTES))
    for path in (commits / "3", store / "2.zip", store / "3.changelog"):
        path.write_bytes(b"")
    assert describe_damage(LocalFiles(tmp_path)) == []
    for path in (commits / "4", store / "4.zip"):
        path.write_bytes(b"")
    assert describe_damage(LocalFiles(tmp_path)) == [
        f"{path} does not match its checksum" for path in (commits / "4", store / "4.zip")
    ]
