"""Fixtures of the checkpoint's tests."""

from pathlib import Path

import pytest

from checkpoints.checkpoint import Checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return a checkpoint of the first owner."""
    checkpoint = Checkpoint.at(tmp_path / "coordinator")
    checkpoint.own(1)
    return checkpoint
