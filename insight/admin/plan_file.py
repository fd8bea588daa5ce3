"""Reset plans as CSV: `topic,partition,offset`, or `group,topic,partition,offset` for several groups.

One line per partition, no header. Source: ConsumerGroupCommand.exportOffsetsToCsv, CsvUtils.
"""

import csv
import io
from collections.abc import Mapping, Sequence

from assignors.kafka.api import TopicPartition

Offsets = Mapping[TopicPartition, int]


class PlanFileError(ValueError):
    """A line that is not part of a plan; the message names the line."""


def parse_plan(text: str, group_ids: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the offset of each partition, by group. The last of several lines for a partition counts.

    Lines without a group apply to the one group in `group_ids`, which must then have exactly one id. The
    first line determines the form of all lines. Raises PlanFileError.
    """
    rows = [(number, row) for number, row in enumerate(csv.reader(io.StringIO(text)), 1) if row]
    columns = 3 if rows and len(rows[0][1]) == 3 and len(group_ids) == 1 else 4
    plan: dict[str, dict[TopicPartition, int]] = {}
    for number, row in rows:
        if len(row) != columns:
            form = "topic,partition,offset" if columns == 3 else "group,topic,partition,offset"
            raise PlanFileError(f"line {number} of the reset plan has {len(row)} columns, expected: {form}")
        group_id = row[0] if columns == 4 else group_ids[0]
        topic, partition, offset = row[-3:]
        about = TopicPartition(topic, _number(partition, number))
        plan.setdefault(group_id, {})[about] = _number(offset, number)
    return plan


def _number(text: str, line: int) -> int:
    try:
        return int(text)
    except ValueError:
        raise PlanFileError(f"line {line} of the reset plan has '{text}' instead of a number") from None


def export_plan(plans: Mapping[str, Offsets], *, with_group: bool) -> str:
    """Return the offsets as CSV, by group, topic and partition; each line ends with a newline."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group_id, offsets in sorted(plans.items()):
        for (topic, partition), offset in sorted(offsets.items()):
            row = (topic, partition, offset)
            writer.writerow((group_id, *row) if with_group else row)
    return out.getvalue()
