"""What consumers of the command line do with records: nothing, or a JSON line for each in a file."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec


def line_writer(stack: ExitStack, consumed: Path | None) -> Callable[[Sequence[Any]], None]:
    """Nothing where `consumed` is None; the file is closed with the stack."""
    if consumed is None:
        return lambda records: None
    file = stack.enter_context(consumed.open("ab"))

    def write(records: Sequence[Any]) -> None:
        file.write(b"".join(_line(record) for record in records))
        file.flush()  # the kernel has it now: even SIGKILL loses no record that counts as processed

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
