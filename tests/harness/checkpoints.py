"""A checkpoint in a folder, as tests look into it."""

from pathlib import Path

from checkpoints.checkpoint import Checkpoint


def path_of(checkpoint: Checkpoint) -> Path:
    path = checkpoint.files.local
    assert path is not None
    return path


def spark_of(checkpoint: Checkpoint) -> Path:
    """The folder of Spark's own checkpoint."""
    return path_of(checkpoint) / "spark"
