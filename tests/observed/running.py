"""A campaign: stories side by side on one stage, then the reports, judged."""

import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import click
import msgspec
from msgspec import Struct

from insight.why.report import Report
from tests.observed.judge import Judge, offsets_verdict
from tests.observed.lines import Verdict
from tests.observed.stage import OURS, Stage
from tests.observed.stories import Story
from tests.observed.truth import Truth

# A report follows within some batches of the observer, or of the coordinator's query.
_REPORT_TIMEOUT_S = 30.0
_LOOK_S = 1.0


class Told(Struct, kw_only=True):
    """A story that was played: how many steps it had, and the verdicts. `failure` is why it ended early."""

    story: str
    clients: str
    protocol: str
    steps: int = 0
    verdicts: list[Verdict] = []
    failure: str = ""


class Result(Struct, kw_only=True):
    """A campaign. `skipped` says which stories were left out, and why."""

    stage: str
    seed: int
    folder: str
    seconds: float
    stories: list[Told]
    skipped: dict[str, str]

    @property
    def wrong(self) -> list[tuple[str, Verdict]]:
        """The verdicts that are wrong, with their stories."""
        return [(told.story, v) for told in self.stories for v in told.verdicts if v.class_ == "wrong"]

    @property
    def is_well(self) -> bool:
        return not self.wrong and not any(told.failure for told in self.stories)

    @property
    def summary(self) -> str:
        return f"{self.stage}: {len(self.stories)} groups, {self.seconds:.0f} s, in {self.folder}"

    @property
    def complaints(self) -> list[str]:
        wrong = [
            f"WRONG {story}: {it.action}: {it.line}: said {it.said}, not {it.happened}"
            for story, it in self.wrong
        ]
        return wrong + [f"FAILED {told.story}: {told.failure}" for told in self.stories if told.failure]


def campaign(stage: Stage, stories: Sequence[Story], *, seed: int, together: int) -> Result:
    """Play the stories in an order that follows from the seed, so many at a time, and judge the reports."""
    began_s = time.monotonic()
    with stage:
        skipped = {story.name: reason for story in stories if (reason := story.why_not(stage))}
        played = [story for story in stories if story.name not in skipped]
        Random(seed).shuffle(played)
        with ThreadPoolExecutor(together) as pool:
            truths = list(pool.map(lambda story: _play(stage, story), played))
        give_up_s = time.monotonic() + _REPORT_TIMEOUT_S
        told = [_judged(stage, story, truth, give_up_s) for story, truth in zip(played, truths, strict=True)]
    return Result(
        stage=stage.name,
        seed=seed,
        folder=str(stage.folder),
        seconds=time.monotonic() - began_s,
        stories=sorted(told, key=lambda it: [story.name for story in stories].index(it.story)),
        skipped=skipped,
    )


def _play(stage: Stage, story: Story) -> Truth | str:
    """The truth, or why the story failed."""
    began_s = time.monotonic()
    try:
        with story.played_on(stage) as play:
            story.script(play)
            play.finish()
    except Exception as error:  # noqa: BLE001 - the other stories go on, and the result says it
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began_s
    _keep(stage, f"{story.name}.truth.json", play.truth)
    click.echo(f"{story.name}: {len(play.truth.steps)} steps, {seconds:.0f} s", err=True)
    return play.truth


def _judged(stage: Stage, story: Story, truth: Truth | str, give_up_s: float) -> Told:
    told = Told(
        story=story.name, clients=story.clients or story.library.name, protocol=story.library.protocol
    )
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
