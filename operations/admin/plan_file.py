"""Reset plans, the new offsets of partitions, as CSV.

The columns are `topic,partition,offset`, or `group,topic,partition,offset` for several groups.

One line per partition, no header. Source: ConsumerGroupCommand.exportOffsetsToCsv, CsvUtils. Spreadsheets
write such files too: with a byte order mark, in UTF-16, and with a comma after the last column.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.numbers import INT32_MAX, INT64_MAX, INT64_MIN, OutOfRange, parse_whole_number, shortened

Offsets = Mapping[TopicPartition, int]

_Form = tuple[str, ...]
"""The names of the columns of a plan's lines."""
_WITHOUT_GROUP: _Form = ("topic", "partition", "offset")
_WITH_GROUP: _Form = ("group", *_WITHOUT_GROUP)
_OTHER_SEPARATORS = (";", "\t", "|")
# Source: Topic.LEGAL_CHARS.
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class PlanFileError(ValueError):
    """The error of a line that is not part of a plan. Its message names the line."""


def read_plan(file: IO[bytes], group_ids: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the plan in a file. Raises PlanFileError."""
    try:
        content = file.read()
    except OSError as error:
        raise PlanFileError(f"the reset plan cannot be read: {error.strerror or error}") from error
    return parse_plan(_decode(content), group_ids)


def parse_plan(text: str, group_ids: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the offset of each partition, by group. Raises PlanFileError.

    The last of several lines for a partition counts. Lines without a group are for the one group in
    `group_ids`, which must then have exactly one id. The first line determines the form of all lines.
    """
    plan: dict[str, dict[TopicPartition, int]] = {}
    forms: Sequence[_Form] = (_WITHOUT_GROUP, _WITH_GROUP) if len(group_ids) == 1 else (_WITH_GROUP,)
    for number, row in _rows(text):
        try:
            forms = (_form_of(row, forms),)
            partition, offset = _partition_and_offset(row[-3:])  # the last columns of both forms
        except ValueError as error:
            expected = " or ".join(map(",".join, forms))
            raise PlanFileError(f"line {number} of the reset plan {error}, expected: {expected}") from None
        group_id = row[0] if forms == (_WITH_GROUP,) else group_ids[0]
        plan.setdefault(group_id, {})[partition] = offset
    return plan


def export_plan(plans: Mapping[str, Offsets], *, with_group: bool) -> str:
    """Return the offsets as CSV, in the order of group, topic and partition."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group_id, offsets in sorted(plans.items()):
        for (topic, partition), offset in sorted(offsets.items()):
            row = (topic, partition, offset)
            writer.writerow((group_id, *row) if with_group else row)
    return out.getvalue()


def _decode(content: bytes) -> str:
    """Return the text of a plan file in UTF-8, or in UTF-16 with a byte order mark. Raise PlanFileError."""
    encoding = "utf-16" if content.startswith(_UTF16_BOMS) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise PlanFileError(
            f"line {line} of the reset plan is not {encoding.removesuffix('-sig').upper()}: save the file as "
            "UTF-8"
        ) from None
    if "\0" in text:
        raise PlanFileError("the reset plan has zero bytes, as UTF-16 has: save the file as UTF-8")
    return text


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty, with its line number."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            while row and not row[-1].strip():
                row.pop()  # an empty cell at the end
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise PlanFileError(f"line {reader.line_num} of the reset plan is not CSV: {error}") from None


def _form_of(row: list[str], forms: Sequence[_Form]) -> _Form:
    """Return the form of a row, one of `forms`. Raise ValueError that continues the sentence "line N ..."."""
    if len(row) == 1 and (separator := next((s for s in _OTHER_SEPARATORS if s in row[0]), None)):
        raise ValueError(f"is separated by {separator!r} instead of a comma")
    if tuple(cell.strip().lower() for cell in row) in (_WITHOUT_GROUP, _WITH_GROUP):
        raise ValueError("is a header, which a reset plan does not have")
    for form in forms:
        if len(row) == len(form):
            return form
    raise ValueError(f"has {len(row)} column{'' if len(row) == 1 else 's'}")


def _partition_and_offset(cells: list[str]) -> tuple[TopicPartition, int]:
    """Return the partition and its offset. Raise ValueError that continues the sentence "line N ..."."""
    topic, partition, offset = (cell.strip(" \t") for cell in cells)
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"has {shortened(topic)!a} instead of the name of a topic")
    return TopicPartition(topic, _number(partition, 0, INT32_MAX)), _number(offset, INT64_MIN, INT64_MAX)


def _number(text: str, at_least: int, at_most: int) -> int:
    """Return the number of a cell. Raise ValueError that continues the sentence "line N ..."."""
    try:
        return parse_whole_number(text, at_least, at_most)
    except OutOfRange as error:
        raise ValueError(f"has a number out of its range: {error}") from None
    except ValueError:
        raise ValueError(f"has {shortened(text)!r} instead of a number") from None
