"""Detecting a full disk."""

import subprocess
import sys
from pathlib import Path

import pytest

from kafka_why.local_files import SPACE_NEEDED_BYTES, describe_full_disk

LOOK = """
import resource, sys
from pathlib import Path
from kafka_why.local_files import describe_full_disk
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
print(describe_full_disk([Path(sys.argv[2])]))
"""


def look(folder: Path, file_size_max: int) -> str:
    """Return the result in a process whose files are limited to this many bytes. The limit needs no
    privileges.
    """
    command = [sys.executable, "-c", LOOK, str(file_size_max), str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout.strip()


def test_folder_with_space_passes_and_is_left_unchanged(tmp_path: Path) -> None:
    assert describe_full_disk([tmp_path]) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("space_bytes", [0, SPACE_NEEDED_BYTES - 1])
def test_a_folder_without_space_for_a_batch_is_named(tmp_path: Path, space_bytes: int) -> None:
    sentence = f"the disk is full: {tmp_path} cannot take {SPACE_NEEDED_BYTES} bytes: File too large"
    assert look(tmp_path, space_bytes) == sentence
    assert list(tmp_path.iterdir()) == [], "the disk is left as it was"
    assert look(tmp_path, SPACE_NEEDED_BYTES) == "None"


def test_write_error_of_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_why.local_files._PROBE", "full")
    (tmp_path / "full").symlink_to("/dev/full")
    assert str(describe_full_disk([tmp_path])).endswith("No space left on device")


def test_missing_folder_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    assert describe_full_disk([tmp_path / "gone", tmp_path]) is None


def test_a_folder_that_cannot_be_written_for_another_reason_is_named(tmp_path: Path) -> None:
    (tmp_path / ".space").mkdir()
    assert describe_full_disk([tmp_path]) == f"{tmp_path} cannot be written: Is a directory"
