"""A sample of the fault campaign, and a build with planted bugs that its judge has to catch."""

import pytest

from tests.campaigns.planted import BUGS, bug_of
from tests.campaigns.playing import schedule
from tests.faults.campaign.judge.verdicts import Violation
from tests.faults.campaign.kinds import KINDS
from tests.faults.campaign.running import campaign
from tests.faults.campaign.stage import ASSIGNMENTS, TRANSACTIONS

pytestmark = pytest.mark.e2e

SEED = 12
# So many groups of each protocol as fit beside other tests.
FEW = {"classic": 6, "transactional": 1, "consumer": 1}
# In two classic groups each bug, and in one of the consumer protocol.
WITH_BUGS = {"classic": 2 * (len(BUGS) + 1), "consumer": len(BUGS) + 1}
# Each breaks another process, or its disk. `make faults-campaign` has the others.
PLAYED = (
    "driver's Python killed",
    "driver's JVM killed",
    "Python worker killed",
    "replica killed",
    "replica slowed",
    "gateway killed",
    "broker held still",
    "disk full",
    "coordinator sleeps until the standby has taken over",
)


@pytest.mark.timeout(600)
def test_clients_lose_nothing_under_random_faults() -> None:
    result = campaign(SEED, len(PLAYED), PLAYED, standby=True, groups=FEW, is_sample=True)
    assert result.is_well, f"seed {SEED}, folder {result.folder}: {result.failure} {result.sentences[:20]}"
    assert {struck.fault for struck in result.struck} == set(PLAYED)
    assert result.numbers[TRANSACTIONS] > 0
    assert result.numbers[ASSIGNMENTS] > 0


@pytest.mark.timeout(600)
def test_fault_campaign_catches_planted_bugs() -> None:
    """Each group has a bug, of all kinds in turn, or none. The judge finds each bug, in groups of both of
    Kafka's protocols, and nothing else.
    """
    faults = ["ticker stopped (the driver's Python held still)"] * 4
    result = campaign(SEED, len(faults), faults[:1], step="buggy", groups=WITH_BUGS, is_sample=True)
    assert not result.failure, result.failure
    caught = {(wrong, group) for wrong, group in result.found if wrong == bug_of(group)}
    assert {wrong for wrong, _ in caught} == set(Violation)
    for protocol in ("classic", "consumer"):
        assert any(group.startswith(protocol) for _, group in caught), protocol
    assert {bug_of(group) for _, group in result.found} == set(Violation), (
        "a group without a bug is judged sound"
    )
    result.remove_folder()


def test_equal_seeds_give_equal_schedules() -> None:
    """Each kind of fault occurs once before any occurs twice."""
    one, again, other = (
        [(fault.name, random.random()) for fault, random in schedule(seed, 40, KINDS)] for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
    assert {fault.name for fault, _ in schedule(3, len(KINDS), KINDS)} == set(KINDS)
