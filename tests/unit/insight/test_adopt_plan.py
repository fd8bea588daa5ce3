"""Which groups move to another coordinator, and why the others do not."""

import pytest

from assignors.kafka.api import TopicPartition
from insight.adopt.plan import AdoptDecision, Committed, FoundGroup, plan

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
AT_5, AT_7 = Committed(5, 1, "by a"), Committed(7, None, "")


def group(offsets: dict[TopicPartition, Committed], *, members: int = 0, kind: str = "classic") -> FoundGroup:
    return FoundGroup("g", kind, "Stable" if members else "Empty", members, offsets)


def test_offsets_that_the_other_coordinator_lacks_move() -> None:
    decided = plan(group({P0: AT_5, P1: AT_7}), group({P0: AT_5}), overwrite=False)
    assert (decided.outcome, decided.offsets) == (AdoptDecision.MOVE, {P1: AT_7})
    assert plan(group({P0: AT_5}), None, overwrite=False).offsets == {P0: AT_5}


def test_a_group_that_was_moved_is_the_same() -> None:
    assert plan(group({P0: AT_5}), group({P0: AT_5, P1: AT_7}), overwrite=False).outcome is AdoptDecision.SAME


def test_a_group_without_offsets_has_nothing_to_move() -> None:
    assert plan(group({}), None, overwrite=False).outcome is AdoptDecision.EMPTY


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
def test_what_is_refused_and_why(here: FoundGroup, there: FoundGroup | None, reason: str) -> None:
    decided = plan(here, there, overwrite=False)
    assert decided.outcome is AdoptDecision.REFUSED
    assert decided.reason.endswith(reason)


def test_other_offsets_are_replaced_on_request() -> None:
    decided = plan(group({P0: AT_5, P1: AT_5}), group({P0: AT_7}), overwrite=True)
    assert (decided.outcome, decided.offsets) == (AdoptDecision.MOVE, {P0: AT_5, P1: AT_5})
