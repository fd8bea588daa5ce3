"""Scenario files: commands to groups, one per line, and their expected outcomes.

The outcome of a command is the answer after ` -> ` and the indented lines below. Of a command without an
outcome only its own expectations (`=>`, `expect`) are checked, because other commands show the same outcome.
Lines that begin with `#` are comments. All commands of a file act on the same groups, in order.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_INDENT, _ANSWER = "    ", " -> "
_OWN = re.compile(r"\S+ \S+\.[a-z-]+\d* (?:-> )?(.+)")
_DOCS = Path(__file__).parents[2] / "docs"
_ROW = re.compile(r"^\| ([A-Z]+\d+[a-z]?) \|", re.MULTILINE)


def rules_of(*pages: str) -> list[str]:
    """Return the ids of the rows of these pages of rules, in order."""
    rows = _ROW.findall("".join((_DOCS / f"{page}.md").read_text() for page in pages))
    assert len(rows) == len(set(rows)), "a row is there twice"
    return rows


@dataclass(frozen=True)
class Step:
    """A command with its outcome, or a comment or blank line, which has no command."""

    line: int
    text: str
    outcome: list[str]
    """The answer, or "" if there is none, and the lines below."""

    @property
    def command(self) -> str:
        return "" if self.text.startswith("#") else self.text


def parse(text: str) -> list[Step]:
    """Return the steps of a scenario file."""
    steps: list[Step] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(_INDENT):
            outcome = steps[-1].outcome
            outcome += [line.removeprefix(_INDENT)] if outcome else ["", line.removeprefix(_INDENT)]
        else:
            command, *answer = [line] if line.startswith("#") else line.split(_ANSWER, 1)
            steps.append(Step(number, command, answer))
    return steps


def outcome_of(told: list[str]) -> list[str]:
    """Return a command's lines as an outcome: its answer without time and request name, and the rest."""
    lines = "\n".join(told).splitlines()
    own = _OWN.fullmatch(lines[0]) if lines else None
    return ["", *lines] if own is None else [own[1], *lines[1:]]


def check(path: Path, run: Callable[[str], list[str]], *, rewrite: bool) -> None:
    """Call `run` for each command of a file, and compare the outcomes.

    Raises AssertionError at the first command that has another outcome. With `rewrite` the outcomes are
    written to the file instead.
    """
    played: list[str] = []
    for step in parse(path.read_text()):
        outcome = outcome_of(run(step.command)) if step.command else []
        if step.outcome and not rewrite:
            assert outcome == step.outcome, f"{path.name}, line {step.line}: {step.text}"
        answer, *below = outcome if step.outcome else [""]
        played += [f"{step.text}{_ANSWER}{answer}" if answer else step.text, *(_INDENT + it for it in below)]
    if rewrite:
        path.write_text("".join(f"{line}\n" for line in played))
