"""A campaign: stories side by side on one stage, then the reports, judged; its tables and command line."""

import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import click
import msgspec
from msgspec import Struct

from kafka_why.why.model import CauseKind
from kafka_why.why.report import Report
from tests.campaigns import results as frame
from tests.campaigns.playing import command
from tests.campaigns.results import markdown
from tests.observed.judge import Judge, offsets_verdict
from tests.observed.lines import Class, Line, Source, Verdict
from tests.observed.stage import STAGES, Stage
from tests.observed.stories import STORIES, Story
from tests.observed.truth import Truth

# A report follows within some batches of the observer, or of the coordinator's query.
_REPORT_TIMEOUT_S = 30.0
_LOOK_S = 1.0


class Told(Struct):
    """A report on a story that was played, made from one source: how many steps the story had, and the
    verdicts. `failure` is why the story ended early.
    """

    story: str
    clients: str
    source: Source
    steps: int = 0
    verdicts: list[Verdict] = []
    failure: str = ""


@dataclass(kw_only=True)
class Result(frame.Result):
    """A campaign on one stage, its `side`. `skipped` says which stories were left out, and why."""

    stories: list[Told] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def campaign(stage: Stage, stories: Sequence[Story], *, seed: int, together: int) -> Result:
    """Play the stories in an order that follows from the seed, so many at a time, and judge the reports of
    each source. The first half of each story is compacted last.
    """
    began_s = time.monotonic()
    result = Result(seed=seed, side=stage.name, folder=str(stage.folder))
    with stage:
        result.skipped = {story.name: reason for story in stories if (reason := story.why_not(stage))}
        chosen = [story for story in stories if story.name not in result.skipped]
        in_order = Random(seed).sample(chosen, len(chosen))
        with ThreadPoolExecutor(together) as pool:
            playing = {it.name: pool.submit(_play, stage, it) for it in in_order}
        truths = [(story, playing[story.name].result()) for story in chosen]
        result.stories += _told_of(stage, truths, time.monotonic() + _REPORT_TIMEOUT_S)
    for told in result.stories:
        result.sentences += [
            f"{told.story}: {told.source}: {it.action}: {it.line}: said {it.said}, not {it.happened}"
            for it in told.verdicts
            if it.class_ is Class.WRONG
        ] + ([f"{told.story} failed: {told.failure}"] if told.failure else [])
    result.numbers["reports"] = len(result.stories)
    result.seconds = time.monotonic() - began_s
    return result


def _play(stage: Stage, story: Story) -> Truth | str:
    """Return the truth, or why the story failed."""
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


def _told_of(stage: Stage, truths: Sequence[tuple[Story, Truth | str]], give_up_s: float) -> Iterator[Told]:
    """Judge the reports of each source on these stories."""
    played: list[tuple[Story, Truth, dict[str, str]]] = []
    for story, truth in truths:
        if isinstance(truth, str):
            yield Told(story.name, story.names, stage.sources[0], failure=truth)
            continue
        played.append((story, truth, {}))
        for source in stage.sources:
            yield _told(stage, *played[-1], source, give_up_s)
        (stage.folder / f"{story.name}.why.txt").write_text(stage.text(story.name))
    if stage.cleaned:
        for story, truth, clients in sorted(played, key=lambda it: it[1].middle_ms):
            whole_from_ms = stage.clean_before(truth.middle_ms)
            for source in stage.cleaned:
                yield _told(stage, story, truth, clients, source, give_up_s, whole_from_ms)


def _told(
    stage: Stage,
    story: Story,
    truth: Truth,
    clients: dict[str, str],
    source: Source,
    give_up_s: float,
    whole_from_ms: int = 0,
) -> Told:
    """`clients` get those that the report names."""
    while True:
        report = stage.report(story.name, source)
        clients |= report.clients
        _keep(stage, f"{story.name}.{source.name.lower()}.why.json", report)
        judge = Judge(truth, report, source, whole_from_ms=whole_from_ms, clients=clients)
        verdicts = [*judge.verdicts()]
        if source is stage.sources[0]:
            verdicts += offsets_verdict(truth, stage.offsets(story.name))
        # What is wrong may only be late.
        if time.monotonic() > give_up_s or not any(it.class_ is Class.WRONG for it in verdicts):
            return Told(story.name, story.names, source, len(truth.steps), verdicts)
        time.sleep(_LOOK_S)


def _keep(stage: Stage, name: str, what: Truth | Report) -> None:
    """Leave what is judged in the folder."""
    (stage.folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=2))


def table(results: Sequence[Result]) -> str:
    """Return the counts of verdicts: by coordinator and source, by line and source, and by story."""
    parts = [_by_source(results), _by_line(results), _by_story(results)]
    for result in results:
        if result.skipped:
            names: dict[str, list[str]] = defaultdict(list)
            for name, reason in result.skipped.items():
                names[reason].append(name)
            left_out = "; ".join(f"{', '.join(of)} ({reason})" for reason, of in names.items())
            parts.append(f"Not played with {result.side}: {left_out}.")
    return "\n\n".join(parts)


def _by_source(results: Sequence[Result]) -> str:
    told = [(result.side, told) for result in results for told in result.stories]
    told += [("**all of Kafka**", one) for _, one in told if one.source is not Source.OURS]
    found: dict[tuple[str, Source], list[Told]] = defaultdict(list)
    for side, one in told:
        found[side, one.source].append(one)
    rows = [
        (
            side,
            source.value,
            str(len(of)),
            str(sum(told.steps for told in of)),
            *_counts(of),
            "{} of {}".format(*exact_reasons(of)),
        )
        for (side, source), of in found.items()
    ]
    return markdown(("coordinator", "source", "groups", "steps", *Class, "exact reason"), rows, texts=2)


def exact_reasons(told: Sequence[Told]) -> tuple[int, int]:
    """Return the number of rebalances of which a report says exactly why they began, and that of all."""
    causes = [it for it in _verdicts(told) if it.line is Line.CAUSE]
    exact = [
        it for it in causes if it.class_ is Class.EXACT and not it.said.startswith(CauseKind.MEMBER_GONE)
    ]
    return len(exact), len(causes)


def _by_line(results: Sequence[Result]) -> str:
    """Return what the reports from each source have of a line."""
    told = [told for result in results for told in result.stories]
    sources = [source for source in Source if any(it.source is source for it in told)]
    of = {source: _verdicts(it for it in told if it.source is source) for source in sources}
    rows = [(line.value, *(_said(line, of[source]) for source in sources)) for line in Line]
    return markdown(("line", *sources), rows, texts=1 + len(sources))


def _by_story(results: Sequence[Result]) -> str:
    of: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for told in (told for result in results for told in result.stories):
        of[told.story, told.clients].append(told)
    rows = [
        (*names, str(max(it.steps for it in told)), str(len(told)), *_counts(told))
        for names, told in of.items()
    ]
    return markdown(("group", "clients", "steps", "reports", *Class), rows, texts=2)


def _said(line: Line, verdicts: Iterable[Verdict]) -> str:
    """`40 exact, 3 unknown`."""
    found = Counter(it.class_ for it in verdicts if it.line == line)
    return ", ".join(f"{found[class_]} {class_}" for class_ in Class if found[class_]) or "-"


def _counts(told: Iterable[Told]) -> tuple[str, ...]:
    found = Counter(it.class_ for it in _verdicts(told))
    return tuple(str(found[class_]) for class_ in Class)


def _verdicts(told: Iterable[Told]) -> list[Verdict]:
    return [verdict for it in told for verdict in it.verdicts]


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
