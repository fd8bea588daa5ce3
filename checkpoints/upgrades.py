"""Checks that this code may rerun batches of earlier code (docs/decisions/0021-upgrades.md). A planned,
uncommitted batch may have written a part of its output. It runs again at the next start with the same
outcome, so only code with the same rules may run it.
"""

import importlib.metadata

from checkpoints.checkpoint import Checkpoint
from kafka_why.local_files import FolderError

SAME_RULES = ("0.1.0",)
"""The versions of this project with the same rules as this one, which is the last of them. A version that
changes any output (responses, history, views, offsets, state) restarts this list with itself.
`tests/unit/checkpoints/test_histories.py` finds such a change.
"""


def code_version() -> str:
    """Return the version of this code. It is stored with every configuration."""
    return importlib.metadata.version("spark-group-coordinator")


def check_planned(checkpoint: Checkpoint, version: str) -> None:
    """Raise FolderError if code with other rules planned a batch that is not committed. Call it before
    anything is written, so that the other version can still start.
    """
    batch = checkpoint.last_batch("offsets")
    if batch <= checkpoint.last_batch("commits"):
        return
    planned_by = next(
        (e.code_version for e in reversed(checkpoint.record().epochs) if e.from_batch <= batch), None
    )
    if planned_by is None or planned_by in SAME_RULES:
        return
    raise FolderError(
        f"batch {batch} was planned by version {planned_by} and is not committed. This is version "
        f"{version}, which decides requests by other rules, so it could answer requests of that batch a "
        f"second time and differently. Start version {planned_by} on this folder once more, with "
        "--tick-interval-ms 5000 --no-gateway, and stop it in order when it is ready: between two batches "
        "none is planned. Repeat that if this error comes again (docs/recovery.md, 'Upgrade')"
    )


def check_answered(checkpoint: Checkpoint, version: str, *, is_ahead: bool) -> None:
    """Raise FolderError if a replica of code with other rules gave answers that no batch has planned.
    `is_ahead` is True if the last replica answered requests after the last planned batch.
    """
    if not is_ahead:
        return
    answered_by = next((epoch.code_version for epoch in reversed(checkpoint.record().epochs)), None)
    if answered_by is None or answered_by in SAME_RULES:
        return
    raise FolderError(
        f"version {answered_by} was ended before its query had handled all requests that its replica had "
        f"answered. This is version {version}, which decides requests by other rules, so it could answer "
        f"them a second time and differently. Start version {answered_by} on this folder once more, with "
        "--no-replica --no-gateway, and stop it in order when it is ready (docs/recovery.md, 'Upgrade')"
    )
