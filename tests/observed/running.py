"""A campaign: stories side by side on one stage, then the reports, judged; its tables and command line."""

import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import click
import msgspec
from msgspec import Struct

from kafka_why.why.report import Report
from tests.campaigns import results as frame
from tests.campaigns.playing import command
from tests.campaigns.results import markdown
from tests.observed.judge import Judge, offsets_verdict
from tests.observed.lines import Class, Line, Verdict
from tests.observed.stage import OURS, STAGES, Stage
from tests.observed.stories import STORIES, Story
from tests.observed.truth import Truth

# A report follows within some batches of the observer, or of the coordinator's query.
_REPORT_TIMEOUT_S = 30.0
_LOOK_S = 1.0


class Told(Struct, kw_only=True):
    """A story that was played: how many steps it had, and the verdicts. `failure` is why it ended early."""

    story: str
    clients: str
    steps: int = 0
    verdicts: list[Verdict] = []
    failure: str = ""


@dataclass(kw_only=True)
class Result(frame.Result):
    """A campaign on one stage, its `side`. `skipped` says which stories were left out, and why."""

    stories: list[Told] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def campaign(stage: Stage, stories: Sequence[Story], *, seed: int, together: int) -> Result:
    """Play the stories in an order that follows from the seed, so many at a time, and judge the reports."""
    began_s = time.monotonic()
    result = Result(seed=seed, side=stage.name, folder=str(stage.folder))
    with stage:
        result.skipped = {story.name: reason for story in stories if (reason := story.why_not(stage))}
        played = [story for story in stories if story.name not in result.skipped]
        Random(seed).shuffle(played)
        with ThreadPoolExecutor(together) as pool:
            truths = {it.name: pool.submit(_play, stage, it) for it in played}
        give_up_s = time.monotonic() + _REPORT_TIMEOUT_S
        for story in stories:
            if story.name in truths:
                result.stories.append(_judged(stage, story, truths[story.name].result(), give_up_s))
    for told in result.stories:
        wrong = [
            f"{told.story}: {it.action}: {it.line}: said {it.said}, not {it.happened}"
            for it in told.verdicts
            if it.class_ is Class.WRONG
        ]
        result.sentences += wrong + ([f"{told.story} failed: {told.failure}"] if told.failure else [])
    result.numbers["groups"] = len(result.stories)
    result.seconds = time.monotonic() - began_s
    return result


def _play(stage: Stage, story: Story) -> Truth | str:
    """The truth, or why the story failed."""
    began_s = time.monotonic()
    try:
        truth = story.play(stage)
    except Exception as error:  # noqa: BLE001 - the other stories go on, and the result says it
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began_s
    _keep(stage, f"{story.name}.truth.json", truth)
    click.echo(f"{story.name}: {len(truth.steps)} steps, {seconds:.0f} s", err=True)
    return truth


def _judged(stage: Stage, story: Story, truth: Truth | str, give_up_s: float) -> Told:
    told = Told(story=story.name, clients=story.clients or story.library.name)
    if isinstance(truth, str):
        told.failure = truth
        return told
    told.steps = len(truth.steps)
    while True:
        report = stage.report(story.name)
        _keep(stage, f"{story.name}.why.json", report)
        judge = Judge(truth, report, is_observed=stage.name != OURS)
        told.verdicts = [*judge.verdicts(), *offsets_verdict(truth, stage.offsets(story.name))]
        # What is wrong may only be late.
        if time.monotonic() > give_up_s or not any(it.class_ == "wrong" for it in told.verdicts):
            break
        time.sleep(_LOOK_S)
    (stage.folder / f"{story.name}.why.txt").write_text(stage.text(story.name))
    return told


def _keep(stage: Stage, name: str, what: Truth | Report) -> None:
    """Leave what is judged in the folder."""
    (stage.folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=2))


def table(results: Sequence[Result]) -> str:
    """What was said in each campaign: by story, then by line."""
    parts = [_by_stage(results), _by_line(results)]
    for result in results:
        if result.skipped:
            names = ", ".join(f"{name} ({reason})" for name, reason in result.skipped.items())
            parts.append(f"Not played with {result.side}: {names}.")
    return "\n\n".join(parts)


def _by_stage(results: Sequence[Result]) -> str:
    head = ("coordinator", "group", "clients", "steps", *Class)
    rows = [
        (result.side, told.story, told.clients, str(told.steps), *_counts(told.verdicts))
        for result in results
        for told in result.stories
    ]
    for result in results:
        verdicts = [it for told in result.stories for it in told.verdicts]
        steps = sum(told.steps for told in result.stories)
        rows.append((f"**{result.side}**", "all", "", str(steps), *_counts(verdicts)))
    return markdown(head, rows, texts=3)


def _by_line(results: Sequence[Result]) -> str:
    """What each coordinator's reports have of a line."""
    stages = list(dict.fromkeys(result.side for result in results))
    by_stage = {
        stage: [v for it in results if it.side == stage for told in it.stories for v in told.verdicts]
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


def _campaigns(
    seed: int, *, stages: Sequence[str], stories: Sequence[str], together: int
) -> Iterator[Result]:
    for name in stages:
        stage = Stage(name, Path(tempfile.mkdtemp(prefix="observed-")))
        yield campaign(stage, [STORIES[it] for it in stories or STORIES], seed=seed, together=together)


main = command(
    _campaigns,
    Result,
    table,
    Path("docs/observed.md"),
    [
        click.Option(
            ["--coordinator", "stages"],
            multiple=True,
            type=click.Choice(STAGES),
            default=["Kafka 4.4"],
            show_default=True,
            help="Whose groups; repeatable, one after the other.",
        ),
        click.Option(
            ["--story", "stories"],
            multiple=True,
            type=click.Choice([*STORIES]),
            help="Only these; repeatable.",
        ),
        click.Option(
            ["--together"], type=click.IntRange(1), default=2, show_default=True, help="Stories side by side."
        ),
    ],
)
