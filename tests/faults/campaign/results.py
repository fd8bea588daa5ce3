"""Campaigns one after the other. Their results are lines of JSON in a file, and the table of a document."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import click
import msgspec


class Judged(Protocol):
    """The result of a campaign."""

    @property
    def is_well(self) -> bool:
        """Whether the campaign came to its end, and its judge found nothing wrong."""


R = TypeVar("R", bound=Judged)

RESULTS_OPTION = click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append each campaign's result to this file, a line of JSON; the table is of the whole file.",
)

_BEGIN, _END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


def play(
    campaigns: Iterable[R],
    kind: type[R],
    results: Path | None,
    *,
    say: Callable[[R], None],
    table: Callable[[Sequence[R]], str],
    document: Path | None,
) -> NoReturn:
    """Take one campaign after the other, which plays it, and say its result. Then say the table of all, with
    those of earlier runs. `document` gets it, too. The exit code is 1 if anything is wrong.
    """
    found = [] if results is None else _read(results, kind)
    is_well = True
    for result in campaigns:
        if results is not None:
            with results.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
        found.append(result)
        is_well &= result.is_well
        say(result)
    click.echo(table(found))
    if document is not None:
        _write(document, table(found))
    raise SystemExit(0 if is_well else 1)


def _read(path: Path, kind: type[R]) -> list[R]:
    """The results of a file, none if there is no file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]


def _write(document: Path, table: str) -> None:
    """Put a table between the two marks of the document."""
    text = document.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    document.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}")
