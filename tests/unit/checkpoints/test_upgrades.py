"""A batch that code with other rules has planned is not run again."""

from pathlib import Path

import pytest

from checkpoints.folder import Committed, Epoch, Folder, FolderError, Identity
from checkpoints.upgrades import SAME_RULES, check_planned
from streaming.service.coordinator import code_version

IDENTITY = Identity("cluster", "requests", "topic", 1, "00000000-0000-0000-0000-000000000001", 64)
OTHER, OURS = "0.0.1", SAME_RULES[-1]
BY_OTHER, BY_OURS = Epoch(0, {}, [], OTHER), Epoch(3, {}, [], OURS)


def folder_with(path: Path, planned: int, committed: int, *epochs: Epoch) -> Folder:
    """A folder whose batches are planned up to `planned`, and committed up to `committed`."""
    folder = Folder(path)
    for log, last in (("offsets", planned), ("commits", committed)):
        (folder.spark / log).mkdir(parents=True)
        for batch in range(last + 1):
            (folder.spark / log / str(batch)).touch()
    if epochs:
        folder.create(IDENTITY, list(epochs), [], Committed(committed, {}))
    return folder


def test_this_version_runs_its_own_batches() -> None:
    """A new version appends itself to SAME_RULES, or begins it anew."""
    assert code_version() == OURS


@pytest.mark.parametrize(
    ("planned", "committed", "epochs"),
    [
        (-1, -1, ()),
        (0, -1, ()),
        (2, 2, (BY_OTHER,)),
        (3, 3, (BY_OTHER, BY_OURS)),
        (3, 2, (BY_OTHER, BY_OURS)),
        (9, 8, (BY_OTHER, BY_OURS)),
    ],
)
def test_batches_that_are_committed_or_of_the_same_rules_are_no_obstacle(
    tmp_path: Path, planned: int, committed: int, epochs: tuple[Epoch, ...]
) -> None:
    check_planned(folder_with(tmp_path, planned, committed, *epochs), OURS)


def test_a_batch_that_other_rules_planned_is_refused_by_name(tmp_path: Path) -> None:
    """The epoch of a later batch does not count."""
    folder = folder_with(tmp_path, 2, 1, BY_OTHER, BY_OURS)
    with pytest.raises(
        FolderError,
        match=rf"batch 2 was planned by version {OTHER} .* This is version {OURS}.* Start version {OTHER} on",
    ):
        check_planned(folder, OURS)
