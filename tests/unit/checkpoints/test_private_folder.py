"""Folders for data: nobody but the user of the coordinator enters those that it makes."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kafka_why.local_files import ServiceFolder, make_private_folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_folder_and_the_missing_ones_above_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = tmp_path / "data" / "coordinator"
    make_private_folder(made)
    make_private_folder(made)
    assert (mode(made), mode(made.parent), mode(tmp_path)) == (0o700, 0o700, 0o755)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "data")


def test_a_folder_that_others_can_enter_keeps_its_mode_and_is_reported(tmp_path: Path) -> None:
    made = ServiceFolder(tmp_path / "made")
    there = ServiceFolder(tmp_path / "there")
    there.path.mkdir(mode=0o755)
    with capture_logs() as lines, made.locked(), there.locked():
        assert (mode(made.path), mode(there.path)) == (0o700, 0o755)
        assert mode(there.path / "lock") == 0o600
    assert [(line["event"], line["folder"]) for line in lines] == [
        ("other users can enter a data folder", str(there.path))
    ]
