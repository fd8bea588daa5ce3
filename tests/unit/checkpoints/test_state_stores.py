"""Which versions of a state can be loaded from a store's files."""

import json
import zipfile
from pathlib import Path

import pytest

from checkpoints.spark_logs import SPARK
from checkpoints.state_stores import StateStore, remove_torn_state, state_stores
from kafka_why.local_files import LocalFiles
from tests.unit.checkpoints.test_damage import write


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


def test_a_damaged_changelog_ends_what_can_be_loaded_until_the_next_snapshot(spark: Path) -> None:
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


def test_damaged_files_of_a_batch_that_was_cut_off_are_removed(tmp_path: Path, spark: Path) -> None:
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
