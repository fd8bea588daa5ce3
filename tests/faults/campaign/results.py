"""Results of campaigns in a file, a line of JSON each."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

R = TypeVar("R")


def append_result(path: Path, result: Any) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def read_results(path: Path, kind: type[R]) -> list[R]:
    """The results of a file, none if there is no file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]
