"""What every campaign does: it plays the faults of a seed, one after the other, and judges."""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

from tests.faults.campaign.cluster import CampaignCluster
from tests.faults.campaign.kinds.fault import Fault
from tests.faults.campaign.results import Judged

W = TypeVar("W", bound=CampaignCluster)
S = TypeVar("S")
"""What is noted of a fault."""

Scheduled = tuple[str, Random]
"""The name of a fault, and what it takes its chances from."""


class Played(Judged, Protocol[S]):
    """The result of a campaign, while it is played. `folder` is kept if anything is wrong."""

    struck: list[S]
    failure: str
    seconds: float
    folder: str


def schedule(
    seed: int, faults: int, names: Sequence[str], kinds: Mapping[str, Fault[Any]]
) -> list[Scheduled]:
    """The faults of a seed. Each kind comes once before any comes twice, where there are enough faults."""
    random = Random(seed)
    weights = [kinds[name].weight for name in names]
    chosen = random.sample(names, min(faults, len(names)))
    chosen += random.choices(names, weights, k=faults - len(chosen))
    random.shuffle(chosen)
    return [(name, Random(f"{seed}-{place}-{name}")) for place, name in enumerate(chosen)]


def play_faults(
    world: W,
    result: Played[S],
    faults: Iterable[Scheduled],
    *,
    strike: Callable[[W, str, Random], S],
    finish: Callable[[W], None],
    until_s: float,
) -> None:
    """Start the world, let the faults strike, `finish`, and end the world. No fault begins after `until_s`
    (monotonic). An exception is the result's `failure`.
    """
    began_s = time.monotonic()
    try:
        world.start()
        for name, random in faults:
            if time.monotonic() > until_s:
                break
            result.struck.append(strike(world, name, random))
        finish(world)
    except Exception as error:  # noqa: BLE001 - the report names it, and the seed
        result.failure = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    finally:
        world.close()
    result.seconds = time.monotonic() - began_s
    if result.is_well:
        shutil.rmtree(result.folder, ignore_errors=True)
