"""Which groups move to another coordinator, and why the others do not."""

import pytest

from kafka_why.contract.protocols.subscriptions import TopicPartition
from operations.adopt.plan import AdoptDecision, CommittedPosition, FoundGroup, plan

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
AT_5, AT_7 = CommittedPosition(5, 1, "by a"), CommittedPosition(7, None, "")


def group(
    offsets: dict[TopicPartition, CommittedPosition], *, members: int = 0, kind: str = "classic"
) -> FoundGroup:
    return FoundGroup("g", kind, "Stable" if members else "Empty", members, offsets)


@pytest.mark.parametrize(
    ("here", "there", "overwrite", "outcome", "offsets"),
    [
        (group({P0: AT_5, P1: AT_7}), group({P0: AT_5}), False, AdoptDecision.MOVE, {P1: AT_7}),
        (group({P0: AT_5}), None, False, AdoptDecision.MOVE, {P0: AT_5}),
        (group({P0: AT_5, P1: AT_5}), group({P0: AT_7}), True, AdoptDecision.MOVE, {P0: AT_5, P1: AT_5}),
        (group({P0: AT_5}), group({P0: AT_5, P1: AT_7}), False, AdoptDecision.SAME, {}),
        (group({}), None, False, AdoptDecision.EMPTY, {}),
    ],
)
def test_offsets_missing_at_the_other_coordinator_are_moved(
    here: FoundGroup,
    there: FoundGroup | None,
    overwrite: bool,
    outcome: AdoptDecision,
    offsets: dict[TopicPartition, CommittedPosition],
) -> None:
    decided = plan(here, there, overwrite=overwrite)
    assert (decided.outcome, decided.offsets) == (outcome, offsets)


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        (group({P0: AT_5}, members=2), None, "has 2 members: stop them first"),
        (group({P0: AT_5}), group({}, members=1), "has 1 members at the other coordinator"),
        (group({P0: AT_5}, kind="share"), None, "is a share group"),
        (FoundGroup("g", error="UNSTABLE"), None, "UNSTABLE"),
        (group({P0: AT_5}), FoundGroup("g", "classic", "Empty", error="NOT_COORDINATOR"), "NOT_COORDINATOR"),
        (
            group({P0: AT_5, P1: AT_5}),
            group({P0: AT_7}),
            "has other offsets of 1 partitions: see --overwrite",
        ),
    ],
)
def test_adoption_is_refused_with_a_reason(here: FoundGroup, there: FoundGroup | None, reason: str) -> None:
    decided = plan(here, there, overwrite=False)
    assert decided.outcome is AdoptDecision.REFUSED
    assert decided.reason.endswith(reason)
