"""One member on its way to the target assignment: rows RC0 to RC18, and TM3.

A table drives `reconcile` with a target that is given, so that each row is reached directly. What requests
lead to is in tests/scenarios.
"""

from collections.abc import Collection

import pytest

from state.config import CoordinatorConfig
from state.kafka.consumer.reconcile import reconcile
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember, MemberState
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.history import HistoryEntry

T, U = b"t" * 16, b"u" * 16
NOW_MS = 1_000_000
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def make_group(
    epoch: int, *members: ConsumerMember, target: dict[str, dict[bytes, list[int]]]
) -> ConsumerGroup:
    return ConsumerGroup(
        group_id="g",
        incarnation="i",
        group_epoch=epoch,
        assignment_epoch=epoch,
        members={member.member_id: member for member in members},
        target=target,
        topics={"t": Topic(T, 6), "u": Topic(U, 2), "gone": None},
    )


def make_member(
    member_id: str,
    epoch: int,
    assigned: dict[bytes, dict[int, int]] | None = None,
    state: MemberState = STABLE,
    pending: dict[bytes, dict[int, int]] | None = None,
) -> ConsumerMember:
    return ConsumerMember(
        member_id,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t", "u"],
        member_epoch=epoch,
        state=state,
        assigned=assigned or {},
        pending_revocation=pending or {},
        revoking_since_ms=NOW_MS - 700 if pending else None,
        rebalance_deadline_ms=NOW_MS + 10 if pending else None,
    )


def run(
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: dict[bytes, Collection[int]] | None,
    changed: bool = False,
) -> tuple[list[str], list[HistoryEntry]]:
    """Return the rows and the history of one reconciliation."""
    context = StepContext(group, "g", "cause", NOW_MS, CoordinatorConfig())
    reconcile(context, member, owned, changed)
    effects = context.effects()
    return effects.rules, effects.history


def test_a_member_at_the_target_stays_as_it_is() -> None:
    member = make_member("a", 3, {T: {0: 2}})
    rules, history = run(make_group(3, member, target={"a": {T: [0]}}), member, None)
    assert rules == ["RC0"]
    assert not history
    assert member.previous_epoch == -1


@pytest.mark.parametrize("owned", [None, {T: [0, 1, 2]}, {T: [2]}])
def test_a_member_revokes_before_it_moves(owned: dict[bytes, Collection[int]] | None) -> None:
    member = make_member("a", 2, {T: {0: 2, 1: 2, 2: 2}})
    rules, [entry] = run(make_group(3, member, target={"a": {T: [0, 1, 3]}}), member, owned)
    assert rules == ["RC1", "RC9", "TM3"]
    assert (member.member_epoch, member.previous_epoch, member.state) == (2, 2, UNREVOKED)
    assert (member.assigned, member.pending_revocation) == ({T: {0: 2, 1: 2}}, {T: {2: 2}})
    assert (member.rebalance_deadline_ms, member.revoking_since_ms) == (NOW_MS + 60_000, NOW_MS)
    assert (entry.assigned, entry.revoking, entry.awaiting) == ({"t": [0, 1]}, {"t": [2]}, None)
    assert (entry.member_epoch, entry.member_state, entry.took_ms) == (2, "UnrevokedPartitions", None)
    assert entry.reason == "the member has to revoke t-2 before it moves from epoch 2 to epoch 3"


def test_a_classic_member_has_no_rebalance_timer() -> None:
    member = make_member("a", 2, {T: {0: 2}})
    member.classic = ClassicMember(45_000, [])
    rules, _ = run(make_group(3, member, target={"a": {}}), member, None)
    assert rules == ["RC1", "RC9"]
    assert member.rebalance_deadline_ms is None


def test_what_the_client_does_not_have_is_dropped() -> None:
    member = make_member("a", 2, {T: {0: 2, 2: 2}})
    rules, [entry] = run(make_group(3, member, target={"a": {T: [0]}}), member, {T: [0]})
    assert rules == ["RC1", "RC12"]
    assert (member.member_epoch, member.previous_epoch, member.state) == (3, 2, STABLE)
    assert (member.assigned, member.pending_revocation) == ({T: {0: 2}}, {})
    assert (
        entry.reason
        == "the member loses t-2, which its client does not have; it is at epoch 3 and gets no partition"
    )
