"""When the last committed batch is pinned."""

from pathlib import Path

import pytest

from checkpoints.checkpoint import Checkpoint
from streaming.service.query.batches import CommittedPin
from tests.harness.checkpoints import path_of


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    checkpoint = Checkpoint.at(tmp_path)
    checkpoint.own(1)
    return checkpoint


def pinned(checkpoint: Checkpoint) -> int:
    committed = checkpoint.record().committed
    return -1 if committed is None else committed.batch


def test_a_batch_is_pinned_at_most_once_a_second_after_the_first_ones(checkpoint: Checkpoint) -> None:
    now_s = 0.0
    pin = CommittedPin(checkpoint, "requests", now_s=lambda: now_s)
    for batch, at_s, expected in (
        (2, 0.0, 2),
        (3, 0.0, 3),
        (4, 0.0, 4),
        (5, 0.9, 4),
        (6, 1.0, 6),
        (7, 1.5, 6),
    ):
        now_s = at_s
        pin.pin_often(batch, {0: batch})
        assert pinned(checkpoint) == expected
    pin.pin(8)
    assert pinned(checkpoint) == 8, "the last one is pinned when the query ends"
    for earlier in (-1, 2):
        pin.pin(earlier)
        assert pinned(checkpoint) == 8


def test_full_disk_while_pinning_does_not_end_the_service(checkpoint: Checkpoint) -> None:
    full = path_of(checkpoint) / "owners" / "1.json.new"
    full.symlink_to("/dev/full")
    pin = CommittedPin(checkpoint, "requests")
    pin.pin(3)
    full.unlink()
    pin.pin(3)
    assert pinned(checkpoint) == 3
