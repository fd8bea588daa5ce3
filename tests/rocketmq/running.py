"""The campaign of one seed, its table in docs/rocketmq-faults.md, and its command line."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, by_fault, early_ends, markdown, median_and_most
from tests.faults.campaign.judge.verdicts import Wrong as JudgedWrong
from tests.rocketmq.kinds import KINDS, PLAIN
from tests.rocketmq.stage import DELAY, GATEWAYS, RocketMqStage, Wrong
from tests.rocketmq.stage import PLAIN as PLAIN_SIDE

WRONGS = [wrong.value for wrong in (*Wrong, *JudgedWrong)]
_HEAD = ("fault", "clients at", "times", *WRONGS, "all goes on after (s)", DELAY)


def campaign(seed: int, faults: int, kinds: Sequence[str] = (), *, side: str = GATEWAYS) -> Result:
    """Play one seed. `side` is where the clients are."""
    names = kinds or (KINDS if side == GATEWAYS else PLAIN)
    build = partial(RocketMqStage, seed=seed, side=side)
    return play(Result(seed=seed, side=side), build, faults, {name: KINDS[name] for name in names})


def table(results: Sequence[Result]) -> str:
    """Return a row for each fault and side, and below them what was judged."""
    rows = []
    for fault, side, struck, wrongs in by_fault(results, KINDS):
        times = (
            [it.recovery_s for it in struck],
            [it.measured[DELAY] for it in struck if DELAY in it.measured],
        )
        counts = [str(wrongs[wrong]) for wrong in WRONGS]
        rows.append((fault, side, str(len(struck)), *counts, *map(median_and_most, times)))
    judged = "\n".join(f"- {it.side}, {it.summary}" for it in results)
    return f"{markdown(_HEAD, rows, texts=2)}\n\n{judged}{early_ends(results)}"


main = command(
    lambda *seed, **options: [campaign(*seed, **options)],
    Result,
    table,
    Path("docs/rocketmq-faults.md"),
    [
        *fault_options(KINDS, 30),
        click.Option(
            ["--side"],
            type=click.Choice([GATEWAYS, PLAIN_SIDE]),
            default=GATEWAYS,
            show_default=True,
            help="Where the clients are: at two gateways, or at the plain cluster.",
        ),
    ],
)
