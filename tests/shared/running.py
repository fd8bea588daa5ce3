"""One campaign: faults from a seed under share groups, and then the judge."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import click

from tests.faults.campaign.playing import play_faults, schedule
from tests.shared.judge import Verdict, Wrong, judge, judge_states
from tests.shared.kinds import ALL, AT_BROKERS, KINDS
from tests.shared.stage import COORDINATOR, Stage

PAUSE_S = 2.0
"""The longest time between a group's progress and the next fault."""
_SENTENCES = 50


@dataclass
class Struck:
    """One fault. `recovery_s` is from its end until every group had ended a record of each topic that was
    written after it. `pause_s` is the longest time in which a group ended no record, from the fault's
    beginning on.
    """

    fault: str
    at_ns: int
    recovery_s: float
    pause_s: float


@dataclass
class Result:
    """One campaign."""

    seed: int
    by: str
    struck: list[Struck] = field(default_factory=list)
    wrongs: dict[str, dict[str, int]] = field(default_factory=dict)
    """By fault: how many wrongs of each kind came in its time."""
    sentences: list[str] = field(default_factory=list)
    records: int = 0
    deliveries: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    """Acknowledgements that succeeded, by type."""
    stuck: int = 0
    """Consumers that returned nothing after a renewal, and were replaced."""
    states: int = 0
    """Answers of share coordinators that were judged."""
    seconds: float = 0.0
    failure: str = ""
    folder: str = ""

    @property
    def is_well(self) -> bool:
        return not self.failure and not self.wrongs


def campaign(
    seed: int,
    faults: int,
    *,
    by: str = COORDINATOR,
    kinds: Sequence[str] | None = None,
    last: Sequence[str] = (),
    until_s: float = float("inf"),
) -> Result:
    """Play one seed in a folder of its own, which is kept if anything is wrong. No fault begins after
    `until_s` (monotonic). `by` says who coordinates. The faults of `last` come after those of the seed.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"shared-{seed}-"))
    result = Result(seed, by, folder=str(folder))
    names = list(kinds or [fault.name for fault in (ALL if by == COORDINATOR else AT_BROKERS)])
    struck_last = [(name, Random(f"{seed}-{name}")) for name in last]
    play_faults(
        Stage(folder, seed, by),
        result,
        [*schedule(seed, faults, names, KINDS), *struck_last],
        strike=_strike,
        finish=partial(_finish, result),
        until_s=until_s,
    )
    return result


def _strike(stage: Stage, name: str, random: Random) -> Struck:
    time.sleep(random.uniform(0, PAUSE_S))  # anywhere between a delivery and its acknowledgement
    stage.note_states()
    at_ns = time.monotonic_ns()
    click.echo(f"{time.strftime('%H:%M:%S')} {name}, after {len(stage.producers.written)} records", err=True)
    KINDS[name].strike(stage, random)
    took_s = (time.monotonic_ns() - at_ns) / 1e9
    recovery_s = max(stage.wait_for_progress().values())
    pause_s = stage.longest_pause_s(at_ns)
    stage.note_states()
    told = f"every group goes on after {recovery_s:.1f} s; the longest pause was {pause_s:.1f} s"
    click.echo(f"  {took_s:.1f} s, and {told}", err=True)
    return Struck(name, at_ns, recovery_s, pause_s)


def _finish(result: Result, stage: Stage) -> None:
    """End the load, wait until all is done, and judge."""
    stage.producers.stop()
    stage.drain()
    stage.note_states()
    story = stage.story
    verdicts = list(judge(story))
    for (group, place), states in stage.states.items():
        verdicts += judge_states(group, place, states, stage.eras[group])
    result.records = len(story.written)
    result.deliveries = sum(event.kind == "delivered" for event in story.events)
    for event in story.events:
        if event.kind == "outcome" and event.words[1] == "-":
            result.outcomes[event.words[0]] = result.outcomes.get(event.words[0], 0) + 1
    result.stuck = sum(event.kind == "stuck" for event in story.events)
    result.states = sum(map(len, stage.states.values()))
    _count(result, verdicts)


def _count(result: Result, verdicts: Sequence[Verdict]) -> None:
    """Count each wrong with the fault in whose time it came."""
    for verdict in verdicts:
        fault = next((it.fault for it in reversed(result.struck) if it.at_ns <= verdict.at_ns), "none")
        counts = result.wrongs.setdefault(fault, {wrong.value: 0 for wrong in Wrong})
        counts[verdict.wrong.value] += 1
    result.sentences = [f"{it.wrong}: {it.place}: {it.sentence}" for it in verdicts[:_SENTENCES]]
