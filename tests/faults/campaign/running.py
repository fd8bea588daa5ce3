"""The fault campaign of one seed, its tables in docs/faults.md, and its command line."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, by_fault, early_ends, markdown, median_and_most
from tests.campaigns.stage import IDENTICAL, REPLAYS
from tests.faults.campaign.judge.verdicts import Violation
from tests.faults.campaign.kinds import KINDS, LOCAL, LOST, WITH_STANDBY
from tests.faults.campaign.load.running import PROTOCOLS
from tests.faults.campaign.stage import EARLY, REQUESTS, FaultStage

GROUPS = {protocol: usual for protocol, (usual, _) in PROTOCOLS.items()}
_HEAD = (
    "fault",
    "times",
    "in flight",
    *(wrong.value for wrong in Violation),
    "refused clearly",
    "recovery (s)",
)
_LOSSES_HEAD = ("fault", "times", "last acknowledgement after the loss (s)", "end after the loss (s)")


def campaign(
    seed: int,
    faults: int,
    kinds: Sequence[str] = (),
    *,
    lost_requests: bool = False,
    standby: bool = False,
    step: str = "steady",
    groups: Mapping[str, int] = GROUPS,
    is_sample: bool = False,
) -> Result:
    """Play one seed. For `is_sample` see `FaultStage`."""
    names = kinds or (LOST if lost_requests else WITH_STANDBY if standby else LOCAL)
    build = partial(
        FaultStage,
        seed=seed,
        # Those kinds start a coordinator of their own, and need no other one and no load beside it.
        groups={} if set(names) <= LOST.keys() else groups,
        step=step,
        with_standby=standby,
        is_sample=is_sample,
    )
    return play(Result(seed=seed), build, faults, {name: KINDS[name] for name in names})


def table(results: Sequence[Result]) -> str:
    """Return the tables of all campaigns, and the seeds below them."""
    rows, losses = [], []
    for name, _, struck, wrongs in by_fault(results, KINDS):
        counts = [str(wrongs[wrong.value]) for wrong in Violation]
        in_flight = f"{sum(it.measured['in flight'] for it in struck):,.0f}"
        refused = str(sum(it.is_refused for it in struck))
        recovery = median_and_most([it.recovery_s for it in struck])
        rows.append((name, str(len(struck)), in_flight, *counts, refused, recovery))
        silences, ends = (
            [it.measured[of] for it in struck if of in it.measured] for of in ("silence", "end")
        )
        if silences:
            losses.append((name, str(len(silences)), median_and_most(silences, 2), median_and_most(ends)))
    runs = ", ".join(f"{r.seed} ({len(r.struck)} faults, {r.seconds / 60:.0f} min)" for r in results)
    requests, early, replays, identical = (
        int(sum(result.numbers.get(name, 0) for result in results))
        for name in (REQUESTS, EARLY, REPLAYS, IDENTICAL)
    )
    judged = f"{requests:,} requests were judged, {early:,} with an early answer"
    tables = [markdown(_HEAD, rows), *([markdown(_LOSSES_HEAD, losses)] if losses else [])]
    again = f"{identical} of {replays} replays were identical"
    return "\n\n".join([*tables, f"Seeds: {runs}. {judged}; {again}."]) + early_ends(results)


main = command(
    lambda *seed, **options: [campaign(*seed, **options)],
    Result,
    table,
    Path("docs/faults.md"),
    [
        *fault_options(KINDS),
        click.Option(["--standby"], is_flag=True, help="A second coordinator waits to take over."),
        click.Option(
            ["--lost-requests"], is_flag=True, help="Only the kinds that delete requests under load."
        ),
    ],
)
