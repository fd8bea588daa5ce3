"""The results of campaigns: lines of JSON in a file, and the tables of a document."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
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
class Struck:
    """One fault, from `at` by the clock of the verdicts. `recovery_s` is from its end until all of the load
    went on. `measured` is what the campaign measures of each fault.
    """

    fault: str
    at: int
    recovery_s: float = 0.0
    is_refused: bool = False
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class Result:
    """The result of one seed. `failure` says why it ended early, `folder` is kept unless all is well.

    `side` is whose coordinator it was. `numbers` are what was judged.
    """

    seed: int
    side: str = ""
    struck: list[Struck] = field(default_factory=list)
    wrongs: dict[str, dict[str, int]] = field(default_factory=dict)
    """The number of wrongs of each kind, by row of the table."""
    found: list[tuple[str, str]] = field(default_factory=list)
    """Each wrong and its place."""
    sentences: list[str] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""
    folder: str = ""

    @property
    def is_well(self) -> bool:
        """Return True if the campaign came to its end, and its judge found nothing wrong."""
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

    def count(self, row: str, verdict: Verdict) -> None:
        """Count a wrong in a row of the table."""
        counts = self.wrongs.setdefault(row, {})
        counts[verdict.wrong.value] = counts.get(verdict.wrong.value, 0) + 1
        self.found.append((verdict.wrong.value, verdict.place))
        self.sentences.append(f"{row}: {verdict.wrong}, {verdict.place} at {verdict.at}: {verdict.sentence}")

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Count each wrong with the fault in whose time it came."""
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
    """Print each result as it comes, and then the table of all, which is written to `document`.

    `results` has the results of earlier runs, and gets the new ones. The exit code is 1 if anything is wrong.
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
) -> Iterator[tuple[str, str, list[Struck], Counter[str]]]:
    """Yield each fault and side with its times and its wrongs: those of `names`, "none", and "all"."""
    struck: dict[tuple[str, str], list[Struck]] = defaultdict(list)
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


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Format a table whose first columns, `texts` of them, are texts. The others are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def median_and_most(times: Sequence[float], digits: int = 1) -> str:
    """Format the median and the maximum, or "-" if there is no time."""
    return f"{median(times):.{digits}f}, at most {max(times):.{digits}f}" if times else "-"


def early_ends(results: Iterable[Result]) -> str:
    """Name the seeds that ended early."""
    return "".join(f"\n\nSeed {it.seed} ended early: {it.failure}" for it in results if it.failure)
