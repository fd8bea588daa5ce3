"""Access of tests to the files of a checkpoint in a folder."""

from pathlib import Path

from checkpoints.checkpoint import Checkpoint

OLD, NEW = {"group.max.size": 5}, {"group.max.size": 7}
"""The settings of a configuration, and of the one that replaces it."""
AFTER_MS = 900
"""The time of the last record that a planned batch has read."""


def path_of(checkpoint: Checkpoint) -> Path:
    path = checkpoint.files.local_path
    assert path is not None
    return path


def spark_of(checkpoint: Checkpoint) -> Path:
    """Return the folder of Spark's own checkpoint."""
    return path_of(checkpoint) / "spark"


def plan(checkpoint: Checkpoint, planned: int, committed: int) -> None:
    """Create Spark's offset log and commit log up to these batches, and other files beside their entries."""
    for log, last in (("offsets", planned), ("commits", committed)):
        path = spark_of(checkpoint) / log
        path.mkdir(parents=True, exist_ok=True)
        (path / ".tmp").touch()
        for batch in range(last + 1):
            (path / str(batch)).touch()
            (path / f".{batch}.crc").touch()


def reopened_by_next_owner(checkpoint: Checkpoint) -> Checkpoint:
    """Return the same checkpoint, opened by its next owner."""
    later = Checkpoint.at(path_of(checkpoint))
    later.own(later.newest_owner() + 1)
    return later
