"""Files that a power loss leaves: their content is synced before they get their name, then the name is."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_why.local_files import FolderNotWritable, LocalFiles, make_private_folder
from tests.harness.disk_steps import record_disk_steps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_written_file_and_its_name_are_synced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = record_disk_steps(monkeypatch)
    LocalFiles(folder).write("a", b"1")
    assert steps == ["sync a.new", "name a", "sync folder"]


def test_new_folders_are_synced_before_their_file_has_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = record_disk_steps(monkeypatch)
    LocalFiles(folder).write("owners/x/1", b"1")
    made = ["make owners", "sync folder", "make x", "sync owners"]
    assert steps == [*made, "sync 1.new", "name 1", "sync x"]


def test_folder_that_cannot_be_synced_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO, folder))
    with pytest.raises(FolderNotWritable, match=r"folder/a cannot be written: Input/output error"):
        LocalFiles(folder).write("a", b"1")
    with pytest.raises(OSError, match="Input/output error"):
        make_private_folder(folder / "new")


def refusing(number: int, folder: Path) -> Callable[[int], None]:
    """Return an `os.fsync` that refuses this folder with this error."""

    def fsync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise OSError(number, os.strerror(number))

    return fsync
