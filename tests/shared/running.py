"""The campaign of share groups, of one seed."""

from collections.abc import Sequence
from functools import partial
from random import Random

from tests.campaigns.playing import play, schedule
from tests.shared.kinds import ALL, AT_BROKERS, KINDS
from tests.shared.stage import COORDINATOR, ShareResult, ShareStage


def campaign(
    seed: int,
    faults: int,
    *,
    by: str = COORDINATOR,
    kinds: Sequence[str] = (),
    last: Sequence[str] = (),
    until_s: float = float("inf"),
) -> ShareResult:
    """Play one seed. `by` is the kind of coordinator, `until_s` is as in `play`. The faults of `last` come
    after those of the seed.
    """
    names = kinds or [fault.name for fault in (ALL if by == COORDINATOR else AT_BROKERS)]
    faults_of_seed = schedule(seed, faults, names, KINDS)
    faults_of_seed += [(name, Random(f"{seed}-{name}")) for name in last]
    result = ShareResult(seed=seed, by=by)
    return play("shared", result, partial(ShareStage, seed=seed, by=by), KINDS, faults_of_seed, until_s)
