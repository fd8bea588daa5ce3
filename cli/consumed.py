"""The processing of records by consumers of the command line: none, or a JSON line for each in a file."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec


def line_writer(stack: ExitStack, consumed: Path | None) -> Callable[[Sequence[Any]], None]:
    """Return a function that appends records to the file `consumed`; with None it does nothing.

    The stack closes the file.
    """
    if consumed is None:
        return lambda records: None
    descriptor = os.open(consumed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # it has records
    file = stack.enter_context(os.fdopen(descriptor, "ab"))

    def write(records: Sequence[Any]) -> None:
        file.write(b"".join(_line(record) for record in records))
        file.flush()  # the kernel has the lines now, so even SIGKILL loses no record that counts as processed

    return write


def _line(record: Any) -> bytes:
    line = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": _text(record.key),
        "value": _text(record.value),
    }
    return msgspec.json.encode(line) + b"\n"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
