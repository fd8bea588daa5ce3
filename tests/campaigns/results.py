"""The results of campaigns: lines of JSON in a file, and the tables of a document."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Generic, NoReturn, Protocol, TypeVar

import click
import msgspec

MOST_SENTENCES = 50
_BEGIN, _END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


class Judged(Protocol):
    """The result of a campaign."""

    @property
    def is_well(self) -> bool:
        """Return True if the campaign came to its end, and its judge found nothing wrong."""

    @property
    def summary(self) -> str:
        """One line on what was played."""

    @property
    def complaints(self) -> Iterable[str]:
        """Everything that was wrong."""


@dataclass(kw_only=True)
class Struck:
    """One fault. `recovery_s` is from its end until all of the load went on."""

    fault: str
    recovery_s: float = 0.0


S = TypeVar("S", bound=Struck)


@dataclass(kw_only=True)
class Result(Generic[S]):
    """The result of one seed. `failure` says why it ended early, `folder` is kept unless all is well."""

    seed: int
    struck: list[S] = field(default_factory=list)
    wrongs: dict[str, dict[str, int]] = field(default_factory=dict)
    """The number of wrongs of each kind, by row of the table."""
    sentences: list[str] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""
    folder: str = ""

    @property
    def is_well(self) -> bool:
        return not self.failure and not any(any(counts.values()) for counts in self.wrongs.values())

    @property
    def summary(self) -> str:
        return f"seed {self.seed}: {len(self.struck)} faults, {self.seconds:.0f} s"

    @property
    def complaints(self) -> list[str]:
        failed = f"seed {self.seed} has failed; its folder is {self.folder}"
        return [self.failure, *self.sentences[:MOST_SENTENCES], failed]

    def count(self, row: str, wrong: StrEnum, sentence: str) -> None:
        """Count a wrong in a row of the table."""
        self.wrongs.setdefault(row, {kind.value: 0 for kind in type(wrong)})[wrong.value] += 1
        self.sentences.append(f"{wrong}: {sentence}")


R = TypeVar("R", bound=Judged)


def report(
    played: Iterable[R],
    kind: type[R],
    table: Callable[[Sequence[R]], str],
    *,
    results: Path | None,
    document: Path | None,
) -> NoReturn:
    """Print each result as it comes, and then the table of all, which is written to `document`.

    `results` has the results of earlier runs, and gets the new ones. The exit code is 1 if anything is wrong.
    """
    found = [] if results is None or not results.exists() else read(results, kind)
    is_well = True
    for result in played:
        if results is not None:
            with results.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
        found.append(result)
        is_well &= result.is_well
        click.echo(result.summary)
        if not result.is_well:
            click.echo("\n".join(result.complaints))
    click.echo(table(found))
    if document is not None:
        write(document, table(found))
    raise SystemExit(0 if is_well else 1)


def read(path: Path, kind: type[R]) -> list[R]:
    """Read the results in a file."""
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]


def write(document: Path, table: str) -> None:
    """Put a table between the two marks of the document."""
    text = document.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    document.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Format a table whose first columns, `texts` of them, are texts. The others are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def median_and_most(times: Sequence[float], digits: int = 1) -> str:
    """Format the median and the maximum, or "-" if there is no time."""
    return f"{median(times):.{digits}f}, at most {max(times):.{digits}f}" if times else "-"
