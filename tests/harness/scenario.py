"""Scenario files: commands to a group, and their expected outcome.

A file is a sequence of blocks. A block is one command a line, a line `----`, the outcome, and a blank line. A
block that ends with a line `....` has no outcome, because other blocks show the same: it prepares the groups,
or its commands say themselves what is expected. Lines that begin with `#` are comments. All blocks of a file
act on the same groups, in order.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

SEPARATOR, SETUP = "----", "...."
_DOCS = Path(__file__).parents[2] / "docs"
_ROW = re.compile(r"^\| ([A-Z]+\d+[a-z]?) \|", re.MULTILINE)


def rules_of(*pages: str) -> list[str]:
    """Return the ids of the rows of these pages of rules, in order."""
    rows = _ROW.findall("".join((_DOCS / f"{page}.md").read_text() for page in pages))
    assert len(rows) == len(set(rows)), "a row is there twice"
    return rows


@dataclass(frozen=True)
class Block:
    """One block. `before` holds the comments and blank lines above the block. The last block of a
    file may have only those.
    """

    line: int
    before: list[str]
    commands: list[str]
    separator: str
    outcome: list[str]

    def text(self) -> str:
        """Return the block as a file has it."""
        if not self.commands:
            return "".join(f"{line}\n" for line in self.before)
        return "".join(f"{line}\n" for line in [*self.before, *self.commands, self.separator, *self.outcome])


def parse(text: str) -> list[Block]:
    """Cut a scenario file into blocks. Raises ValueError with the line if a block has no end."""
    blocks = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        begin = at
        while at < len(lines) and (not lines[at] or lines[at].startswith("#")):
            at += 1
        commands_at = at
        while at < len(lines) and lines[at] and lines[at] not in (SEPARATOR, SETUP):
            at += 1
        if at > commands_at and (at == len(lines) or not lines[at]):
            raise ValueError(f"line {commands_at + 1}: a block ends with a line {SEPARATOR!r} or {SETUP!r}")
        separator_at = at
        while at < len(lines) and lines[at]:
            at += 1
        before, commands = lines[begin:commands_at], lines[commands_at:separator_at]
        separator = "".join(lines[separator_at : separator_at + 1])
        blocks.append(Block(commands_at + 1, before, commands, separator, lines[separator_at + 1 : at]))
    return blocks


def play(block: Block, run: Callable[[str], list[str]]) -> Block:
    """Return the block with the outcome of calling `run` for each command, without one if it is a setup."""
    commands = [line for line in block.commands if not line.startswith("#")]
    outcome = [line for command in commands for line in run(command)]
    return replace(block, outcome=[] if block.separator == SETUP else outcome)


def check(path: Path, run: Callable[[str], list[str]], *, rewrite: bool) -> None:
    """Play a file and compare the outcomes.

    Raises AssertionError at the first block that differs. With `rewrite` the outcome is written to the file
    instead.
    """
    played = []
    for block in parse(path.read_text()):
        outcome = play(block, run)
        played.append(outcome)
        if not rewrite:
            where = f"{path.name}, line {block.line}"
            assert "\n".join(outcome.outcome) == "\n".join(block.outcome), (
                f"{where}: {'; '.join(block.commands)}"
            )
    if rewrite:
        path.write_text("".join(block.text() for block in played))
