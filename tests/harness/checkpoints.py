"""A checkpoint in a folder, as tests look into it."""

from pathlib import Path

from checkpoints.checkpoint import Checkpoint

OLD, NEW = {"group.max.size": 5}, {"group.max.size": 7}
"""Settings of one configuration and of the next."""
AFTER_MS = 900
"""The time of the last record that a planned batch has read."""


def path_of(checkpoint: Checkpoint) -> Path:
    path = checkpoint.files.local
    assert path is not None
    return path


def spark_of(checkpoint: Checkpoint) -> Path:
    """Return the folder of Spark's own checkpoint."""
    return path_of(checkpoint) / "spark"


def plan(checkpoint: Checkpoint, planned: int, committed: int) -> None:
    """Make the files that Spark leaves: batches up to these in its two logs, and other files."""
    for log, last in (("offsets", planned), ("commits", committed)):
        path = spark_of(checkpoint) / log
        path.mkdir(parents=True, exist_ok=True)
        (path / ".tmp").touch()
        for batch in range(last + 1):
            (path / str(batch)).touch()
            (path / f".{batch}.crc").touch()


def again(checkpoint: Checkpoint) -> Checkpoint:
    """Return the same checkpoint for its next owner."""
    later = Checkpoint.at(path_of(checkpoint))
    later.own(later.newest_owner() + 1)
    return later
