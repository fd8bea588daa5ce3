"""Describes why a batch fails again and again, and what the operator can do."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from checkpoints.folder import Folder

# The form of a record, or of a request in a pack, in `streaming.query.shard_call.OperatorError`.
_RECORD = re.compile(r"OperatorError: record (\S+-\d+-\d+(?:#\d+)?) of group")

_NAMED_FILES = 5


def describe_failing_batch(folder: Folder, batch: int, failures: int, error: str) -> str:
    """Return one paragraph: the batch, its records, the failing record if known, and what to do."""
    named = _RECORD.search(error)
    if named:
        way_on = (
            f"the record at fault is {named[1]}; start with --skip-record {named[1]} to dead-letter it unread"
        )
    else:
        way_on = "the error names no record, so find the cause in its text"
    return (
        f"batch {batch} failed {failures} times and is tried again. Its records: {_ranges(folder, batch)}. "
        f"{way_on} (docs/operations.md, 'A batch that fails again and again'). Last error: {error[:2000]}"
    )


def describe_damaged_checkpoint(batch: int, damage: Sequence[str]) -> str:
    """Return one paragraph: the batch that cannot run, the damaged files, and what to do."""
    more = f" (and {len(damage) - _NAMED_FILES} files more)" if len(damage) > _NAMED_FILES else ""
    return (
        f"batch {batch} cannot be run because the checkpoint is damaged: "
        f"{'; '.join(damage[:_NAMED_FILES])}{more}. Put back these files, or stop the coordinator and put "
        "back the last copy of the whole folder (docs/operations.md, 'A damaged checkpoint')"
    )


def _ranges(folder: Folder, batch: int) -> str:
    end = _offsets(folder.spark / "offsets" / str(batch))
    begin = _offsets(folder.spark / "offsets" / str(batch - 1))
    ranges = [
        f"{topic}[{partition}] {begin.get(topic, {}).get(partition, 0)} to {until - 1}"
        for topic, partitions in end.items()
        for partition, until in sorted(partitions.items(), key=lambda item: int(item[0]))
        if until > begin.get(topic, {}).get(partition, 0)
    ]
    return ", ".join(ranges) or "not planned yet"


def _offsets(path: Path) -> dict[str, dict[str, int]]:
    """The end offsets of a batch: the third line of Spark's log, {topic: {partition: offset}} or "-"."""
    try:
        line = path.read_text().splitlines()[2]
        return msgspec.json.decode(line, type=dict[str, dict[str, int]])
    except (FileNotFoundError, IndexError, msgspec.DecodeError):
        return {}
