"""The fault campaign of one seed."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from tests.campaigns.playing import play, schedule
from tests.faults.campaign.kinds.all import ALONE, KINDS, LOCAL, LOST, ON_CLUSTER, WITH_STANDBY
from tests.faults.campaign.stage import FaultResult, FaultStage


def campaign(
    seed: int,
    faults: int,
    *,
    kinds: Sequence[str] = (),
    lost_requests: bool = False,
    step: str = "steady",
    share: float = 1.0,
    groups: Mapping[str, int] = MappingProxyType({}),
    cluster: bool = False,
    standby: bool = False,
    until_s: float = float("inf"),
) -> FaultResult:
    """Play one seed. `until_s` is as in `play`."""
    names = [*kinds, *(LOST if lost_requests else ())]
    names = names or list(ON_CLUSTER if cluster else WITH_STANDBY if standby else LOCAL)
    build = partial(
        FaultStage,
        seed=seed,
        step=step,
        share=share,
        groups=groups,
        on_cluster=cluster,
        with_standby=standby,
        with_load=not set(names) <= ALONE.keys(),
    )
    result = FaultResult(seed=seed)
    return play("faults", result, build, KINDS, schedule(seed, faults, names, KINDS), until_s)
