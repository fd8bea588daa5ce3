"""When the last committed batch is pinned."""

from pathlib import Path

import msgspec
import pytest

from checkpoints.folder import Committed, Folder
from streaming.service.committed_pin import CommittedPin


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def pinned(folder: Folder) -> int:
    return msgspec.json.decode((folder.path / "committed.json").read_bytes(), type=Committed).batch


def test_a_batch_is_pinned_at_most_once_a_second(folder: Folder) -> None:
    times_s = iter((0.0, 0.0, 0.9, 1.0, 1.0, 1.5, 1.5))
    pin = CommittedPin(folder, "requests", now_s=lambda: next(times_s))
    for batch, expected in ((4, 4), (5, 4), (6, 6), (7, 6)):
        pin.take_often(batch)
        assert pinned(folder) == expected
    pin.take(8)
    assert pinned(folder) == 8, "the last one is pinned when the query ends"


def test_no_batch_and_an_earlier_batch_are_not_pinned(folder: Folder) -> None:
    pin = CommittedPin(folder, "requests")
    pin.take(-1)
    assert not (folder.path / "committed.json").exists()
    pin.take(3)
    pin.take(2)
    assert pinned(folder) == 3


def test_a_full_disk_does_not_end_the_service(folder: Folder) -> None:
    full = folder.path / "committed.new"
    full.symlink_to("/dev/full")
    pin = CommittedPin(folder, "requests")
    pin.take(3)
    full.unlink()
    pin.take(3)
    assert pinned(folder) == 3
