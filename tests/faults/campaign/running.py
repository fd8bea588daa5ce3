"""One campaign: faults from a seed, one after the other, and then the judge."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType

import click

from tests.faults.campaign.cluster import (
    CLIENT_EXPIRY_MS,
    CONSUMER_SESSION_MS,
    PREFIX,
    CampaignCluster,
    command_line,
    environment,
)
from tests.faults.campaign.judge.answers import judge_answers
from tests.faults.campaign.judge.judging import Case, judge, read_evidence
from tests.faults.campaign.judge.topics import Evidence
from tests.faults.campaign.judge.transactions import Outcomes
from tests.faults.campaign.judge.verdicts import Verdict, Wrong
from tests.faults.campaign.kinds.all import ALONE, KINDS, LOCAL, ON_CLUSTER, WITH_STANDBY
from tests.faults.campaign.load.classic import TOPIC
from tests.faults.campaign.planted import bug_of
from tests.faults.campaign.playing import play_faults, schedule

QUIET_TIMEOUT_S = 120.0
# All rebalances end in this time: REBALANCE_MS, and some time for the coordinator.
PARKED_TIMEOUT_S = 80.0
LOOK_S = 3.0
REPLAY_TIMEOUT_S = 900.0
IDENTICAL = "identical"


@dataclass
class Struck:
    """One fault and what came of it. `recovery_s` is from its end until every group had an answer again.

    `silence_s` and `end_s` are what `MeasuredLoss` has, None for other faults.
    """

    fault: str
    outcome: str
    at_ms: int
    until_ms: int
    in_flight: int
    recovery_s: float
    silence_s: float | None = None
    end_s: float | None = None


@dataclass
class Result:
    """One campaign."""

    seed: int
    struck: list[Struck] = field(default_factory=list)
    wrongs: dict[str, dict[str, int]] = field(default_factory=dict)
    """By fault: how many wrongs of each kind came in its time."""
    found: list[tuple[str, str]] = field(default_factory=list)
    """Each wrong and its group."""
    sentences: list[str] = field(default_factory=list)
    requests: int = 0
    early: int = 0
    transactions: int = 0
    """Those with offsets whose commit was acknowledged."""
    assignments: int = 0
    """Answers that gave partitions to a member of the consumer protocol."""
    seconds: float = 0.0
    failure: str = ""
    folder: str = ""

    replay: str = ""
    """What the command `replay` says of all groups: "identical", or the differences."""

    @property
    def is_well(self) -> bool:
        return not self.wrongs and not self.failure and self.replay in ("", IDENTICAL)


def campaign(
    seed: int,
    faults: int,
    *,
    kinds: Sequence[str] | None = None,
    step: str = "steady",
    share: float = 1.0,
    groups: Mapping[str, int] = MappingProxyType({}),
    on_cluster: bool = False,
    with_standby: bool = False,
    until_s: float = float("inf"),
) -> Result:
    """Play one seed in a folder of its own, which is kept if anything is wrong. No fault begins after
    `until_s` (monotonic).
    """
    faults_there = ON_CLUSTER if on_cluster else WITH_STANDBY if with_standby else LOCAL
    names = list(kinds or [fault.name for fault in faults_there])
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-"))
    result = Result(seed, folder=str(folder))
    world = CampaignCluster(
        folder,
        seed,
        step=step,
        share=share,
        groups=groups,
        on_cluster=on_cluster,
        with_standby=with_standby,
        with_load=not set(names) <= ALONE,
    )
    play_faults(
        world,
        result,
        schedule(seed, faults, names, KINDS),
        strike=_strike,
        finish=partial(_finish, result, step),
        until_s=until_s,
    )
    return result


def _strike(world: CampaignCluster, name: str, random: Random) -> Struck:
    time.sleep(random.uniform(0, 1))  # anywhere in a batch
    in_flight, at_ms = world.load.meter.in_flight, int(time.time() * 1000)
    click.echo(f"{time.strftime('%H:%M:%S')} {name}, {in_flight} in flight", err=True)
    measured = len(world.losses)
    outcome = KINDS[name].strike(world, random)
    over_s = time.monotonic()
    world.wait_until_recovered(over_s)
    world.note_outages()
    recovery_s = time.monotonic() - over_s
    click.echo(f"  {outcome}, every group has an answer after {recovery_s:.1f} s", err=True)
    struck = Struck(name, outcome.value, at_ms, int(time.time() * 1000), in_flight, recovery_s)
    for loss in world.losses[measured:]:
        struck.silence_s, struck.end_s = loss
        click.echo(f"  {loss}", err=True)
    return struck


def _finish(result: Result, step: str, world: CampaignCluster) -> None:
    """Judge what the topics have, and then by the core itself where it has no bugs."""
    if not world.has_load:
        _count(result, world.verdicts)
        return
    found, case = _quiet(world, has_bugs=step == "buggy")
    result.requests = len(found.requests)
    result.early = len(found.early)
    result.transactions = len(case.outcomes.committed)
    result.assignments = sum(bool(answer.given) for answer in found.answered.values())
    _count(result, [*world.verdicts, *judge(found, case)])
    if step == "steady":
        result.replay = _replay(world)


def _quiet(world: CampaignCluster, *, has_bugs: bool) -> tuple[Evidence, Case]:
    """Stop the load, wait until the coordinator has handled everything, and read the topics.

    Where groups have bugs, answers that a bug may have dropped are not waited for.
    """
    world.load.stop()
    world.wait_until_handled(QUIET_TIMEOUT_S)
    world.note_outages()
    acknowledged = {key: offset for key, (offset, _) in world.load.meter.committed.items()}
    outcomes = Outcomes(world.load.meter.transactions[True], world.load.meter.transactions[False])
    case = Case(PREFIX, TOPIC, world.outages, acknowledged, CLIENT_EXPIRY_MS, outcomes, CONSUMER_SESSION_MS)
    # A JoinGroup that waits for members which the load has stopped is answered when they have expired.
    give_up_s = time.monotonic() + PARKED_TIMEOUT_S
    while True:
        found = read_evidence(world.servers, case)
        wrongs = [it for it in judge_answers(found) if not (has_bugs and bug_of(it.group_id))]
        if not wrongs or time.monotonic() > give_up_s:
            return found, case
        time.sleep(LOOK_S)


def _replay(world: CampaignCluster) -> str:
    """Judge a second time: by the core itself, offline."""
    arguments = ["replay", "--all", "--from-topic", "--data-dir", str(world.data)]
    if world.shared is not None:
        arguments += ["--checkpoint", str(world.shared)]
    done = subprocess.run(
        command_line([*arguments, "--bootstrap-servers", world.servers]),
        capture_output=True,
        text=True,
        timeout=REPLAY_TIMEOUT_S,
        env=os.environ | environment(),
        check=False,
    )
    return IDENTICAL if done.returncode == 0 else (done.stdout + done.stderr)[-20_000:]


def _count(result: Result, verdicts: Sequence[Verdict]) -> None:
    """Count each wrong with the fault in whose time it came."""
    for verdict in verdicts:
        fault = next((s.fault for s in reversed(result.struck) if s.at_ms <= verdict.at_ms), "none")
        kinds = result.wrongs.setdefault(fault, {kind.value: 0 for kind in Wrong})
        kinds[verdict.wrong.value] += 1
        result.found.append((verdict.wrong.value, verdict.group_id))
        where = f"group {verdict.group_id!r} at {verdict.at_ms}"
        result.sentences.append(f"{verdict.wrong}: {where}: {verdict.sentence}")
