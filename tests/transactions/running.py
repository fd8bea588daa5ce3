"""One campaign: faults from a seed under applications, and then the checker."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import click

from tests.faults.campaign.playing import play_faults, schedule
from tests.transactions.applications import APPLICATIONS
from tests.transactions.checker import Verdict, Wrong, judge_offsets
from tests.transactions.fleet import Fleet
from tests.transactions.kinds import ALL, KINDS, REFERENCE
from tests.transactions.stage import Stage

PAUSE_S = 3.0
"""The longest time between an application's progress and the next fault."""
_SENTENCES = 50


@dataclass
class Struck:
    """One fault. `recovery_s` is from its end until every application had committed more of its output."""

    fault: str
    recovery_s: float


@dataclass
class Result:
    """One campaign. `wrongs` are counted by application and kind."""

    seed: int
    system: str
    struck: list[Struck] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    """By application: the records of its input."""
    wrongs: dict[str, dict[str, int]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    stable_s: float = 0.0
    """The time from the last record of the output until no offset was pending."""
    seconds: float = 0.0
    failure: str = ""
    folder: str = ""

    @property
    def is_well(self) -> bool:
        return not self.failure and not any(any(kinds.values()) for kinds in self.wrongs.values())


def campaign(
    seed: int,
    faults: int,
    clients: Sequence[str],
    *,
    kinds: Sequence[str] | None = None,
    step: str = "steady",
    is_reference: bool = False,
    brokers: int = 1,
    until_s: float = float("inf"),
) -> Result:
    """Play one seed in a folder of its own, which is kept if anything is wrong. No fault begins after
    `until_s` (monotonic).
    """
    folder = Path(tempfile.mkdtemp(prefix=f"transactions-{seed}-"))
    system = "Kafka" if is_reference else "this project" if step == "steady" else f"with the bug {step!r}"
    result = Result(seed, system, folder=str(folder))
    applications = [APPLICATIONS[name] for name in clients]
    stage = Stage(folder, seed, applications, step=step, is_reference=is_reference, brokers=brokers)
    names = list(kinds or [fault.name for fault in (REFERENCE if is_reference else ALL)])
    faults_of_seed = schedule(seed, faults, names, KINDS)
    play_faults(
        stage, result, faults_of_seed, strike=_strike, finish=partial(_finish, result), until_s=until_s
    )
    return result


def _strike(stage: Stage, name: str, random: Random) -> Struck:
    time.sleep(random.uniform(0, PAUSE_S))  # anywhere in a transaction
    stage.choose(random)
    click.echo(f"{time.strftime('%H:%M:%S')} {name}, after {stage.seen} records", err=True)
    KINDS[name].strike(stage, random)
    over_s = time.monotonic()
    stage.wait_for_progress()
    recovery_s = time.monotonic() - over_s
    click.echo(f"  every application goes on after {recovery_s:.1f} s", err=True)
    return Struck(name, recovery_s)


def _finish(result: Result, stage: Stage) -> None:
    """End the input, wait until all is read and committed, and judge."""
    for fleet in stage.fleets:
        fleet.end_input()
        result.records[fleet.application.name] = fleet.sent
    for fleet in stage.fleets:
        offsets, stable_s = fleet.drain()
        result.stable_s = max(result.stable_s, stable_s)
        found = [
            *judge_offsets(fleet.fed, offsets.committed, offsets.pending),
            *fleet.application.judge(fleet.fed, fleet.read_output()),
        ]
        _count(result, fleet, found)


def _count(result: Result, fleet: Fleet, found: Sequence[Verdict]) -> None:
    name = fleet.application.name
    counts = result.wrongs.setdefault(name, {wrong.value: 0 for wrong in Wrong})
    for verdict in found:
        counts[verdict.wrong.value] += 1
    result.sentences += [f"{name}, {it.place}: {it.wrong}: {it.sentence}" for it in found[:_SENTENCES]]
