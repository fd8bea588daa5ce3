"""The campaign of one seed, its table in docs/rocketmq-faults.md, and its command line."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from tests.campaigns.playing import command, fault_options, play
from tests.campaigns.results import Result, StruckFault, early_ends, fault_table
from tests.faults.campaign.judge.verdicts import Violation as JudgedViolation
from tests.rocketmq.kinds import KINDS, PLAIN
from tests.rocketmq.stage import DELAY, GATEWAYS, RocketMqStage, Violation
from tests.rocketmq.stage import PLAIN as PLAIN_SIDE

TIMES: Mapping[str, Callable[[StruckFault], float | None]] = {
    "all goes on after (s)": lambda it: it.recovery_s,
    DELAY: lambda it: it.measured.get(DELAY),
}


def campaign(seed: int, faults: int, kinds: Sequence[str] = (), *, side: str = GATEWAYS) -> Result:
    """Play one seed. `side` is where the clients are."""
    names = kinds or (KINDS if side == GATEWAYS else PLAIN)
    build = partial(RocketMqStage, seed=seed, side=side)
    return play(Result(seed=seed, side=side), build, faults, {name: KINDS[name] for name in names})


def table(results: Sequence[Result]) -> str:
    """Return a row for each fault and side, and below them what was judged."""
    faults = fault_table(results, KINDS, "clients at", (*Violation, *JudgedViolation), TIMES)
    judged = "\n".join(f"- {it.side}, {it.summary}" for it in results)
    return f"{faults}\n\n{judged}{early_ends(results)}"


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
