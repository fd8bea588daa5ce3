"""Runs a campaign: the faults of a seed one after the other, then the judge. It also has the command line."""

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import click

from tests.campaigns.fault import Fault
from tests.campaigns.results import R, Result, StruckFault, report
from tests.campaigns.stage import Stage

Kinds = Mapping[str, Fault]


def schedule(seed: int, faults: int, kinds: Kinds) -> list[tuple[Fault, Random]]:
    """Return the faults of a seed in random order, each with the source of its random choices.

    No kind occurs twice before every kind has occurred once.
    """
    random = Random(seed)
    weights = [fault.weight for fault in kinds.values()]
    chosen = random.sample([*kinds], min(faults, len(kinds)))
    chosen += random.choices([*kinds], weights, k=faults - len(chosen))
    random.shuffle(chosen)
    return [(kinds[name], Random(f"{seed}-{index}-{name}")) for index, name in enumerate(chosen)]


def play(
    result: Result, build: Callable[[Path], Stage], faults: int, kinds: Kinds, last: Iterable[Fault] = ()
) -> Result:
    """Apply the faults of the result's seed, and then those of `last`, to a stage in a new folder, and judge.

    An exception becomes the result's `failure`. The folder is removed if nothing is wrong.
    """
    began_s = time.monotonic()
    result.folder = tempfile.mkdtemp(prefix=f"campaign-{result.seed}-")
    stage = build(Path(result.folder))
    scheduled = schedule(result.seed, faults, kinds)
    scheduled += [(fault, Random(f"{result.seed}-{fault.name}")) for fault in last]
    try:
        stage.start()
        for fault, random in scheduled:
            result.struck.append(_strike(stage, fault, random))
        stage.judge(result)
    except Exception as error:  # noqa: BLE001 - the report names it, and the seed
        said = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        result.failure = " ".join([*said, stage.describe()])
    finally:
        stage.close()
    result.seconds = time.monotonic() - began_s
    if result.is_well:
        result.remove_folder()
    return result


def _strike(stage: Stage, fault: Fault, random: Random) -> StruckFault:
    time.sleep(random.uniform(0, stage.delay_s))
    struck = StruckFault(fault=fault.name, at=stage.now())
    stage.before_fault(struck, random)
    click.echo(f"{time.strftime('%H:%M:%S')} {fault.name}, {stage.load_so_far}", err=True)
    struck.is_refused = bool(fault.hit(stage, random))
    struck.recovery_s = stage.wait_for_progress()
    stage.after_fault(struck)
    how = "refused clearly" if struck.is_refused else "went on"
    click.echo(f"  {how}, all goes on after {struck.recovery_s:.1f} s", err=True)
    return struck


def fault_options(kinds: Kinds, faults: int = 100) -> list[click.Option]:
    """Return the options `--faults` and `--kind`."""
    return [
        click.Option(["--faults"], type=click.IntRange(0), default=faults, show_default=True),
        click.Option(
            ["--kind", "kinds"], multiple=True, type=click.Choice([*kinds]), help="Only these; repeatable."
        ),
    ]


def command(
    campaigns: Callable[..., Iterable[R]],
    kind: type[R],
    table: Callable[[Sequence[R]], str],
    document: Path,
    options: Sequence[click.Option],
) -> click.Command:
    """Return the command that plays `campaigns(seed, **options)` of each seed, and reports."""

    def play_all(seeds: Sequence[int], results: Path | None, write: bool, **more: Any) -> None:
        played = chain.from_iterable(campaigns(seed, **more) for seed in seeds or (1,))
        report(played, kind, table, results=results, document=document if write else None)

    return click.Command(
        None,
        callback=play_all,
        help="Play each seed, and judge. The exit code is 1 if anything is wrong.",
        params=[
            click.Option(["--seed", "seeds"], type=int, multiple=True, help="Repeatable. Default: 1."),
            *options,
            click.Option(
                ["--results"],
                type=click.Path(path_type=Path, dir_okay=False),
                help="Append each result to this file, a line of JSON; the table is of the whole file.",
            ),
            click.Option(["--write"], is_flag=True, help=f"Write the table to {document}."),
        ],
    )
