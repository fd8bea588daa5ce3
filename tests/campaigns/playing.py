"""The faults of a seed, one after the other, and then the judge."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import click

from tests.campaigns.fault import Fault
from tests.campaigns.results import Result, S
from tests.campaigns.stage import Stage

R = TypeVar("R", bound=Result[Any])
Kinds = Mapping[str, Fault[Any]]
Scheduled = tuple[str, Random]
"""The name of a fault, and the source of its random choices."""


def schedule(seed: int, faults: int, names: Sequence[str], kinds: Kinds) -> list[Scheduled]:
    """Return the faults of a seed. Each kind comes once before any comes twice, if there are enough."""
    random = Random(seed)
    weights = [kinds[name].weight for name in names]
    chosen = random.sample(names, min(faults, len(names)))
    chosen += random.choices(names, weights, k=faults - len(chosen))
    random.shuffle(chosen)
    return [(name, Random(f"{seed}-{place}-{name}")) for place, name in enumerate(chosen)]


def play(
    name: str,
    result: R,
    build: Callable[[Path], Stage[S, R]],
    kinds: Kinds,
    faults: Iterable[Scheduled],
    until_s: float = float("inf"),
) -> R:
    """Let the faults strike a stage in a folder of its own, and judge.

    No fault begins after `until_s` (monotonic). An exception is the result's `failure`. The folder is removed
    if all is well.
    """
    began_s = time.monotonic()
    result.folder = tempfile.mkdtemp(prefix=f"{name}-{result.seed}-")
    stage = build(Path(result.folder))
    try:
        stage.start()
        for fault, random in faults:
            if time.monotonic() > until_s:
                break
            result.struck.append(_strike(stage, kinds[fault], random))
        stage.judge(result)
    except Exception as error:  # noqa: BLE001 - the report names it, and the seed
        result.failure = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    finally:
        stage.close()
    result.seconds = time.monotonic() - began_s
    if result.is_well:
        shutil.rmtree(result.folder, ignore_errors=True)
    return result


def _strike(stage: Stage[S, Any], fault: Fault[Any], random: Random) -> S:
    time.sleep(random.uniform(0, stage.delay_s))
    struck = stage.begin(fault.name, random)
    click.echo(f"{time.strftime('%H:%M:%S')} {fault.name}, {stage.load_so_far}", err=True)
    outcome = fault.strike(stage, random)
    struck.recovery_s = stage.wait_for_progress()
    stage.end(struck, outcome)
    click.echo(f"  {outcome}, all goes on after {struck.recovery_s:.1f} s", err=True)
    return struck
