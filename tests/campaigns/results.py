"""The results of campaigns: lines of JSON in a file, and the tables of a document."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NoReturn, TypeVar

import click
import msgspec

from tests.campaigns.verdict import Verdict

MOST_SENTENCES = 50
_BEGIN, _END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


@dataclass(kw_only=True)
class StruckFault:
    """A fault that struck at the time `at` of the verdicts' clock. `recovery_s` is from its end until all of
    the load made progress. `measured` has the campaign's own figures.
    """

    fault: str
    at: int
    recovery_s: float = 0.0
    is_refused: bool = False
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class Result:
    """The result of one seed. `failure` is the reason of an early end. `folder` is kept unless all is well.

    `side` names the coordinator under test. `numbers` has the amounts that were judged.
    """

    seed: int
    side: str = ""
    struck: list[StruckFault] = field(default_factory=list)
    wrongs: dict[str, dict[str, int]] = field(default_factory=dict)
    """The number of violations of each kind, by row of the table."""
    found: list[tuple[str, str]] = field(default_factory=list)
    """The kind and the place of each violation."""
    sentences: list[str] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""
    folder: str = ""

    @property
    def is_well(self) -> bool:
        """Return True if the campaign was completed, and its judge found no violation."""
        return not self.failure and not self.sentences

    @property
    def summary(self) -> str:
        """Return one line about what was played and judged."""
        numbers = [f"{number:,.0f} {name}" for name, number in self.numbers.items()]
        return ", ".join([f"seed {self.seed}: {len(self.struck)} faults, {self.seconds:.0f} s", *numbers])

    @property
    def complaints(self) -> str:
        """Everything that was wrong."""
        failed = f"seed {self.seed} has failed; its folder is {self.folder}"
        return "\n".join([self.failure, *self.sentences[:MOST_SENTENCES], failed])

    def remove_folder(self) -> None:
        """Remove the folder. Spark's JVM may still be ending, and removes files of its own meanwhile."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def count(self, row: str, verdict: Verdict) -> None:
        """Count a violation in a row of the table."""
        counts = self.wrongs.setdefault(row, {})
        counts[verdict.violation.value] = counts.get(verdict.violation.value, 0) + 1
        self.found.append((verdict.violation.value, verdict.place))
        self.sentences.append(
            f"{row}: {verdict.violation}, {verdict.place} at {verdict.at}: {verdict.sentence}"
        )

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Count each violation in the row of the last fault before it."""
        for verdict in verdicts:
            begun = [struck.fault for struck in self.struck if struck.at <= verdict.at]
            self.count(["none", *begun][-1], verdict)


R = TypeVar("R", bound=Result)


def report(
    played: Iterable[R],
    kind: type[R],
    table: Callable[[Sequence[R]], str],
    *,
    results: Path | None,
    document: Path | None,
) -> NoReturn:
    """Print each result when it is there, then the table of all. Write the table to `document`.

    `results` has the results of earlier runs, and the new ones are appended. The exit code is 1 if anything
    is wrong.
    """
    lines = results.read_bytes().splitlines() if results is not None and results.exists() else []
    found = [msgspec.json.decode(line, type=kind) for line in lines]
    is_well = True
    for result in played:
        if results is not None:
            with results.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
        found.append(result)
        is_well &= result.is_well
        click.echo(result.summary if result.is_well else f"{result.summary}\n{result.complaints}")
    click.echo(table(found))
    if document is not None:
        before, _, rest = document.read_text().partition(_BEGIN)
        _, _, after = rest.partition(_END)
        document.write_text(f"{before}{_BEGIN}\n{table(found)}\n{_END}{after}")
    raise SystemExit(0 if is_well else 1)


def by_fault(
    results: Iterable[Result], names: Iterable[str]
) -> Iterator[tuple[str, str, list[StruckFault], Counter[str]]]:
    """Yield name, side, occurrences and violations of each fault of `names`, and of "none" and "all"."""
    struck: dict[tuple[str, str], list[StruckFault]] = defaultdict(list)
    wrongs: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        for one in result.struck:
            struck[one.fault, result.side].append(one)
            struck["all", result.side].append(one)
        for fault, counts in result.wrongs.items():
            wrongs[fault, result.side].update(counts)
            wrongs["all", result.side].update(counts)
    sides = sorted({side for _, side in (*struck, *wrongs)}, reverse=True)
    for key in ((name, side) for name in (*names, "none", "all") for side in sides):
        if struck[key] or wrongs[key]:
            yield *key, struck[key], wrongs[key]


def fault_table(
    results: Sequence[Result],
    names: Iterable[str],
    side: str,
    wrongs: Iterable[str],
    times: Mapping[str, Callable[[StruckFault], float | None]],
) -> str:
    """Return a table with a row for each fault and side. `side` is the heading of the sides' column. `times`
    has by heading what is measured of each fault.
    """
    wrongs = [*wrongs]
    rows = []
    for fault, of_side, struck, counts in by_fault(results, names):
        measured = [[it for it in map(measure, struck) if it is not None] for measure in times.values()]
        numbers = [str(counts[wrong]) for wrong in wrongs]
        rows.append((fault, of_side, str(len(struck)), *numbers, *map(median_and_most, measured)))
    return markdown(("fault", side, "times", *wrongs, *times), rows, texts=2)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Format a table. The first `texts` columns are texts, the others are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def median_and_most(times: Sequence[float], digits: int = 1) -> str:
    """Format the median and the maximum, or "-" if there is no time."""
    return f"{median(times):.{digits}f}, at most {max(times):.{digits}f}" if times else "-"


def early_ends(results: Iterable[Result]) -> str:
    """Name the seeds that ended early."""
    return "".join(f"\n\nSeed {it.seed} ended early: {it.failure}" for it in results if it.failure)
