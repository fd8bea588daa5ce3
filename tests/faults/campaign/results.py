"""Results of campaigns: in a file, a line of JSON each, and as the table of a document."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

R = TypeVar("R")

_BEGIN, _END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


def append_result(path: Path, result: Any) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def read_results(path: Path, kind: type[R]) -> list[R]:
    """The results of a file, none if there is no file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]


def write_table(document: Path, table: str) -> None:
    """Put a table between the two marks of the document."""
    text = document.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    document.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}")
