"""Spark's JVM keeps its temporary files in one folder, which is empty at each start."""

from pathlib import Path

import pytest

from kafka_why.local_files import FolderNotWritable
from streaming.query.jvm import JAVA_OPTIONS, LOCAL_DIR, SOCKET_FOLDER, temporary_file_settings

MODULE = "streaming.query.jvm"


def test_jvm_and_state_stores_use_the_emptied_temporary_folder(tmp_path: Path) -> None:
    """What a killed JVM has left is removed. Executors elsewhere have folders of their own."""
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


def test_given_temporary_folder_settings_are_kept(tmp_path: Path) -> None:
    given = {LOCAL_DIR: "/mnt/fast", SOCKET_FOLDER: "/run/sockets"}
    assert temporary_file_settings(tmp_path, given, is_local=True).items() >= given.items()


@pytest.mark.parametrize(("length", "is_long"), [(1, False), (8, False), (9, True), (70, True)])
def test_socket_folder_is_moved_if_its_paths_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, length: int, is_long: bool
) -> None:
    """A path that is not absolute is made so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"{MODULE}.SOCKET_FOLDER_MAX_BYTES", len(str(tmp_path / ("x" * 8))))
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
