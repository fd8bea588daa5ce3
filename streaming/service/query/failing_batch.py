"""Describes why a batch fails again and again, and what the operator can do."""

import re
from collections.abc import Sequence

from checkpoints.checkpoint import Checkpoint
from checkpoints.spark_logs import planned_ends
from kafka_why.local_files import FolderError

# The form of a record, or of a request in a pack, in `streaming.query.handling.OperatorError`.
_RECORD = re.compile(r"OperatorError: record (\S+-\d+-\d+(?:#\d+)?) of group")

_LEFT_BEHIND = re.compile(r"record (\S+-\d+-\d+(?:#\d+)?)")

_NAMED_FILES = 5


def describe_failing_batch(
    checkpoint: Checkpoint, batch: int, failures: int, error: str, under_way: Sequence[str] = ()
) -> str:
    """Return one paragraph: the batch, its records, the failing record if known, and what to do.

    `under_way` is what the workers handled that died (`streaming.query.current_request`).
    """
    named = _RECORD.search(error) or _LEFT_BEHIND.fullmatch("; ".join(under_way))
    if named:
        way_on = (
            f"the record at fault is {named[1]}; start with --skip-record {named[1]} to dead-letter it unread"
        )
    elif under_way:
        way_on = f"Python workers died, and handled {', '.join(under_way)} then"
    else:
        way_on = "the error names no record, so find the cause in its text"
    return (
        f"batch {batch} failed {failures} times and is tried again. "
        f"Its records: {_ranges(checkpoint, batch)}. "
        f"{way_on} (docs/recovery.md, 'A batch that fails again and again'). Last error: {error[:2000]}"
    )


def describe_damaged_checkpoint(batch: int, damage: Sequence[str], way_back: str) -> str:
    """Return one paragraph: the batch that cannot run, the damaged files, and what to do. `way_back` is what
    helps without these files.
    """
    more = f" (and {len(damage) - _NAMED_FILES} files more)" if len(damage) > _NAMED_FILES else ""
    return (
        f"batch {batch} cannot be run because the checkpoint is damaged: "
        f"{'; '.join(damage[:_NAMED_FILES])}{more}. Put back these files, or {way_back}"
    )


def _ranges(checkpoint: Checkpoint, batch: int) -> str:
    end = _offsets(checkpoint, batch)
    begin = _offsets(checkpoint, batch - 1)
    ranges = [
        f"{topic}[{partition}] {begin.get(topic, {}).get(partition, 0)} to {until - 1}"
        for topic, partitions in end.items()
        for partition, until in sorted(partitions.items())
        if until > begin.get(topic, {}).get(partition, 0)
    ]
    return ", ".join(ranges) or "not planned yet"


def _offsets(checkpoint: Checkpoint, batch: int) -> dict[str, dict[int, int]]:
    try:
        return planned_ends(checkpoint.files, batch)
    except FolderError:
        return {}
