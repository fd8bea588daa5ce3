"""docs/benchmarks.md: its generated blocks, its pictures, and the results from which both are generated.

A block is between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`. Everything else of the page is
written by hand and stays.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from bench.plot import draw
from bench.report import Measured, markdown, markdown_table, to_json

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"
PLOTS = DOCS / "plots"
RESULTS = PLOTS / "results.json"
WIDTH = 116

_BLOCK = re.compile(r"<!-- begin ([a-z-]+) -->\n.*?<!-- end \1 -->", re.DOTALL)


def write_page(measured: Sequence[Measured]) -> None:
    """Write the page, its pictures and the results. Raises OSError, and KeyError if a row has no block."""
    PLOTS.mkdir(exist_ok=True)
    for row in measured:
        for plot in row.plots:
            draw(plot, PLOTS / f"{plot.name}.png")
    PAGE.write_text(filled(PAGE.read_text(), blocks(measured)))
    RESULTS.write_bytes(to_json(measured))


def blocks(measured: Sequence[Measured]) -> dict[str, str]:
    """Return the content of the blocks: one with all figures that have a limit, and one for each row."""
    limited = [figure for row in measured for figure in row.figures if figure.required is not None]
    content = {"lines": f"{markdown_table(limited)}\n\n{_circumstances(measured)}"}
    for row in measured:
        parts = [markdown_table(row.figures)]
        if row.table:
            parts.append(markdown(row.table))
        parts += [f"![{plot.title}](plots/{plot.name}.png)" for plot in row.plots]
        if row.notes:
            parts.append("\n".join(fill(f"- {note}", WIDTH, subsequent_indent="  ") for note in row.notes))
        content[row.row] = "\n\n".join(parts)
    return content


def filled(page: str, content: Mapping[str, str]) -> str:
    """Return the page with new content in its blocks. Raises KeyError if it lacks a block of `content`."""
    if missing := content.keys() - set(_BLOCK.findall(page)):
        raise KeyError(f"the page has no block for {', '.join(sorted(missing))}")

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name not in content:
            return match[0]
        return f"<!-- begin {name} -->\n{content[name]}\n<!-- end {name} -->"

    return _BLOCK.sub(block, page)


def _circumstances(measured: Sequence[Measured]) -> str:
    """Return a sentence about the machine and the duration."""
    machines = sorted({row.machine for row in measured})
    minutes = sum(row.seconds for row in measured) / 60
    text = f"Machine: {'; '.join(machines)}. All rows together took {minutes:.0f} minutes."
    if quick := [row.row for row in measured if row.is_quick]:
        text += f" Measured with `--quick`: {', '.join(quick)}."
    return fill(text, WIDTH)
