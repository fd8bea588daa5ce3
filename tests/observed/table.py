"""The tables of docs/observed.md."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.campaigns.results import markdown
from tests.observed.lines import Class, Line, Verdict
from tests.observed.running import Result

DOCUMENT = Path("docs/observed.md")


def table(results: Sequence[Result]) -> str:
    """What was said in each campaign: by story, then by line."""
    parts = [_by_stage(results), _by_line(results)]
    for result in results:
        if result.skipped:
            names = ", ".join(f"{name} ({reason})" for name, reason in result.skipped.items())
            parts.append(f"Not played with {result.stage}: {names}.")
    return "\n\n".join(parts)


def _by_stage(results: Sequence[Result]) -> str:
    head = ("coordinator", "group", "clients", "steps", *Class)
    rows = [
        (result.stage, told.story, told.clients, str(told.steps), *_counts(told.verdicts))
        for result in results
        for told in result.stories
    ]
    for result in results:
        verdicts = [it for told in result.stories for it in told.verdicts]
        steps = sum(told.steps for told in result.stories)
        rows.append((f"**{result.stage}**", "all", "", str(steps), *_counts(verdicts)))
    return markdown(head, rows, texts=3)


def _by_line(results: Sequence[Result]) -> str:
    """What each coordinator's reports have of a line."""
    stages = list(dict.fromkeys(result.stage for result in results))
    by_stage = {
        stage: [v for it in results if it.stage == stage for told in it.stories for v in told.verdicts]
        for stage in stages
    }
    rows = [(line.value, *(_said(line, by_stage[stage]) for stage in stages)) for line in Line]
    return markdown(("line", *stages), rows, texts=1 + len(stages))


def _said(line: Line, verdicts: Iterable[Verdict]) -> str:
    """`40 exact, 3 unknown`."""
    found = Counter(it.class_ for it in verdicts if it.line == line)
    return ", ".join(f"{found[class_]} {class_}" for class_ in Class if found[class_]) or "-"


def _counts(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    found = Counter(it.class_ for it in verdicts)
    return tuple(str(found[class_]) for class_ in Class)
