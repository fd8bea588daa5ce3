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
        == "the member loses t-2, which its client does not have; it is at epoch 3 and gets no new partition"
    )


@pytest.mark.parametrize(("owned", "row"), [(None, "RC3"), ({T: [0, 2]}, "RC3")])
def test_a_member_that_still_has_what_it_revokes_stays(
    owned: dict[bytes, Collection[int]] | None, row: str
) -> None:
    member = make_member("a", 2, {T: {0: 2}}, UNREVOKED, {T: {2: 2}})
    rules, history = run(make_group(4, member, target={"a": {}}), member, owned)
    assert rules == [row]
    assert not history
    assert member.rebalance_deadline_ms == NOW_MS + 10


def test_an_acknowledged_revocation_frees_the_partition() -> None:
    member = make_member("a", 2, {T: {0: 2}}, UNREVOKED, {T: {2: 2}})
    group = make_group(3, member, target={"a": {T: [0]}})
    rules, [entry] = run(group, member, {T: [0]})
    assert rules == ["RC5", "RC12"]
    assert (member.member_epoch, member.previous_epoch, member.state) == (3, 2, STABLE)
    assert (member.rebalance_deadline_ms, member.revoking_since_ms) == (None, None)
    assert group.held == {T: {0: "a"}}
    assert (entry.took_ms, entry.revoking) == (700, None)
    assert entry.to_state == "Stable"
    assert entry.reason == "the member has revoked t-2; it is at epoch 3 and gets no new partition"


def test_a_partition_that_is_wanted_again_comes_back_with_the_new_epoch() -> None:
    member = make_member("a", 2, {T: {0: 2}}, UNREVOKED, {T: {2: 2}})
    rules, [entry] = run(make_group(4, member, target={"a": {T: [0, 2]}}), member, {T: [0]})
    assert rules == ["RC5", "RC10"]
    assert (member.assigned, member.pending_revocation) == ({T: {0: 2, 2: 4}}, {})
    assert entry.reason == "the member has revoked t-2; it gets t-2 at epoch 4"


def test_a_newer_target_asks_for_more_after_the_acknowledgement() -> None:
    member = make_member("a", 2, {T: {0: 2, 1: 2}}, UNREVOKED, {T: {2: 2}})
    rules, [entry] = run(make_group(4, member, target={"a": {T: [0]}}), member, {T: [0, 1]})
    assert rules == ["RC5", "RC16", "RC9", "TM3"]
    assert (member.member_epoch, member.assigned, member.pending_revocation) == (2, {T: {0: 2}}, {T: {1: 2}})
    assert (member.rebalance_deadline_ms, member.revoking_since_ms) == (NOW_MS + 60_000, NOW_MS)
    assert entry.took_ms == 700


def test_a_member_waits_for_what_another_one_holds() -> None:
    holder = make_member("b", 2, {T: {2: 2}}, UNREVOKED, {T: {1: 2}})
    member = make_member("a", 3)
    group = make_group(3, holder, member, target={"a": {T: [0, 1, 2]}, "b": {}})
    member.member_epoch = 0
    rules, [entry] = run(group, member, {})
    assert rules == ["RC1", "RC10"]
    assert (member.member_epoch, member.state, member.assigned) == (3, UNRELEASED, {T: {0: 3}})
    assert (entry.assigned, entry.awaiting) == ({"t": [0]}, {"t": [1, 2]})
    assert entry.reason == "the member gets t-0 at epoch 3; it waits for t-1, t-2 of member b"
    assert run(group, member, None) == (["RC6", "RC17", "RC11"], [])
    assert member.previous_epoch == 3
    group.assign(holder, {T: {2: 2}}, {})
    rules, [entry] = run(group, member, None)
    assert rules == ["RC6", "RC18", "RC10"]
    assert (member.state, member.assigned) == (UNRELEASED, {T: {0: 3, 1: 3}})
    assert entry.reason == "the member gets t-1 at epoch 3; it waits for t-2 of member b"


def test_a_member_that_only_waits_is_at_the_new_epoch() -> None:
    holder = make_member("b", 2, {T: {1: 2}})
    member = make_member("a", 2)
    rules, [entry] = run(make_group(3, holder, member, target={"a": {T: [1]}}), member, None)
    assert rules == ["RC1", "RC11"]
    assert (member.member_epoch, member.state) == (3, UNRELEASED)
    assert entry.reason == "the member is at epoch 3 and gets no new partition; it waits for t-1 of member b"


def test_the_target_of_a_topic_without_subscription_counts_as_empty() -> None:
    member = make_member("a", 2, {T: {0: 2}})
    member.subscribed_topic_names = ["gone", "u"]
    rules, _ = run(make_group(3, member, target={"a": {T: [0, 1], U: [0]}}), member, None)
    assert rules == ["RC1", "RC9", "TM3"]
    assert (member.assigned, member.pending_revocation) == ({}, {T: {0: 2}})


@pytest.mark.parametrize(
    ("owned", "rows", "state", "pending"),
    [
        (None, ["RC2", "RC14", "TM3"], UNREVOKED, {T: {0: 2}}),
        ({U: [0]}, ["RC2", "RC15"], STABLE, {}),
    ],
)
def test_a_change_of_topics_shrinks_the_assignment_within_the_epoch(
    owned: dict[bytes, Collection[int]] | None,
    rows: list[str],
    state: MemberState,
    pending: dict[bytes, dict[int, int]],
) -> None:
    member = make_member("a", 3, {T: {0: 2}, U: {0: 3}})
    member.subscribed_topic_names = ["u"]
    found, [entry] = run(make_group(3, member, target={"a": {T: [0], U: [0]}}), member, owned, changed=True)
    assert found == rows
    assert (member.member_epoch, member.previous_epoch, member.state) == (3, 3, state)
    assert (member.assigned, member.pending_revocation) == ({U: {0: 3}}, pending)
    assert "t-0" in entry.reason


def test_a_change_of_topics_adds_to_what_is_revoked() -> None:
    member = make_member("a", 2, {T: {0: 2}, U: {0: 2}}, UNREVOKED, {T: {2: 2}})
    member.subscribed_topic_names = ["u"]
    group = make_group(3, member, target={"a": {U: [0]}})
    rules, [entry] = run(group, member, None, changed=True)
    assert rules == ["RC4", "RC14", "TM3"]
    assert member.pending_revocation == {T: {0: 2, 2: 2}}
    assert entry.took_ms is None
    assert group.held == {T: {0: "a", 2: "a"}, U: {0: "a"}}


def test_a_change_of_topics_that_touches_no_partition_changes_nothing() -> None:
    member = make_member("a", 3, {T: {0: 2}})
    rules, history = run(make_group(3, member, target={"a": {T: [0]}}), member, None, changed=True)
    assert rules == ["RC2", "RC13"]
    assert not history
    assert member.previous_epoch == -1


def test_a_sentence_names_some_partitions_and_members() -> None:
    others = [make_member(f"m{n}", 2, {T: {n: 2}}) for n in range(5)]
    member = make_member("a", 2, {U: dict.fromkeys(range(12), 2)})
    target = {"a": {T: [0, 1, 2, 3, 4]}}
    _, [entry] = run(make_group(3, *others, member, target=target), member, {})
    assert entry.reason == (
        "the member loses u-0, u-1, u-2, u-3, u-4, u-5, u-6, u-7, u-8, u-9 and 2 more partitions, which its "
        "client does not have; it is at epoch 3 and gets no new partition; it waits for t-0 of member m0, "
        "t-1 of member m1, t-2 of member m2 and 2 more members"
    )
