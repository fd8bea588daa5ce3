"""A sample of the fault campaign, and a build with planted bugs that its judge has to catch."""

import pytest

from tests.campaigns.planted import BUGS, bug_of
from tests.campaigns.playing import schedule
from tests.faults.campaign.judge.verdicts import Wrong
from tests.faults.campaign.kinds import KINDS, LOCAL
from tests.faults.campaign.running import GROUPS, campaign
from tests.faults.campaign.stage import ASSIGNMENTS, TRANSACTIONS

pytestmark = pytest.mark.e2e

SEED = 12
# So many groups of each protocol as fit beside other tests.
FEW = {protocol: usual * 3 // 10 for protocol, usual in GROUPS.items()}
# What takes another start of a coordinator or of Spark, or a slow one, is left to `make faults-campaign`.
# Most have a test of their own in `test_supervision`, `test_owner` or tests/slow/test_run.py.
COSTLY = {
    "a record that kills the worker",
    "a bit of the newest checkpoint file changed",
    "newest checkpoint file cut",
    "driver's JVM killed",
    "driver's JVM hangs",
    "requests topic deleted under load",
    "requests topic made again under load",
    "requests topic made again, and grown",
    "driver killed while a broker hangs",
}


@pytest.mark.timeout(600)
def test_nothing_is_lost_whatever_breaks() -> None:
    """Each kind once but the costly ones."""
    kinds = [name for name in LOCAL if name not in COSTLY]
    result = campaign(SEED, len(kinds), kinds, groups=FEW)
    assert result.is_well, f"seed {SEED}, folder {result.folder}: {result.failure} {result.sentences[:20]}"
    assert {struck.fault for struck in result.struck} == set(kinds)
    assert result.numbers[TRANSACTIONS] > 0
    assert result.numbers[ASSIGNMENTS] > 0


@pytest.mark.timeout(600)
def test_planted_bugs_are_caught() -> None:
    """Groups have a bug each, of all kinds in turn, or none. The judge finds each bug, in groups of both of
    Kafka's protocols, and nothing else.
    """
    faults = ["ticker stopped (the driver's Python held still)"] * 4
    groups = FEW | {"consumer": len(BUGS) + 1}
    result = campaign(SEED, len(faults), faults[:1], step="buggy", groups=groups)
    assert not result.failure, result.failure
    caught = {(wrong, group) for wrong, group in result.found if wrong == bug_of(group)}
    assert {wrong for wrong, _ in caught} == set(Wrong)
    for protocol in ("classic", "consumer"):
        assert any(group.startswith(protocol) for _, group in caught), protocol
    assert {bug_of(group) for _, group in result.found} == set(Wrong), "a group without a bug is judged sound"


def test_a_seed_is_a_schedule() -> None:
    """With each kind once before any comes twice."""
    one, again, other = (
        [(fault.name, random.random()) for fault, random in schedule(seed, 40, KINDS)] for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
    assert {fault.name for fault, _ in schedule(3, len(KINDS), KINDS)} == set(KINDS)
