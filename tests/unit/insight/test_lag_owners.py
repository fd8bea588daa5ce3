"""Who holds which partition by a group's view, and when that is not known."""

import msgspec
from msgspec.structs import replace

from insight.lag.owners import UNKNOWN, Ownership, OwnersRow, ownership
from records.codec import encode
from state.kafka.protocols import view_of
from state.kafka.snapshot import GroupSnapshot
from tests.harness.histories import Recorder
from tests.unit.insight.page_facts import member, view

P, Q = ("orders", 4), ("payments", 0)
GROUP = view(members=[member("m", P), member("n", Q)], subscribed_topics=["orders"], state_timestamp_ms=7)


def both(group: GroupSnapshot) -> Ownership:
    """By the view, and by the fields of the record that the metrics keep."""
    row = msgspec.json.decode(encode(group), type=OwnersRow)
    assert ownership(row) == ownership(group)
    return ownership(group)


def test_the_members_of_a_classic_group_hold_what_the_leader_assigned() -> None:
    assert both(GROUP) == Ownership(7, {P: "m", Q: "n"}, frozenset({"orders"}))


def test_a_group_without_members_wants_whatever_it_has_an_offset_of() -> None:
    empty = both(view(state="Empty", state_timestamp_ms=7))
    assert (empty, empty.wants("any")) == (Ownership(7, {}, None), True)


def test_members_whose_subscriptions_are_not_known_want_nothing_for_certain() -> None:
    assert not both(replace(GROUP, subscribed_topics=None)).wants("orders")


def test_while_a_group_rebalances_nobody_is_known_to_hold_anything() -> None:
    for state in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"):
        assert both(replace(GROUP, state=state)) is not None
        assert both(replace(GROUP, state=state)) == UNKNOWN


def test_a_view_without_its_members_says_nothing() -> None:
    assert both(view(truncated=True)) == UNKNOWN


def test_an_assignment_that_cannot_be_read_says_nothing() -> None:
    broken = replace(member("m", P), assignment=b"\x00")
    assert both(replace(GROUP, members=[broken])) == UNKNOWN


def test_members_of_another_protocol_than_consumers_hold_no_partitions() -> None:
    assert both(replace(GROUP, protocol_type="connect")).holders == {}


def test_the_members_of_a_consumer_group_hold_what_they_may_use() -> None:
    recorder = Recorder()
    recorder.play("topics orders=4 prices=1", "at 4s", "A e0", "A e1 owned[orders 0-3]", "at 8s", "A e1")
    group = recorder.any_group()
    assert group is not None
    shown = view_of(group)
    assert isinstance(shown, GroupSnapshot)
    found = both(shown)
    (one,) = shown.members
    assert found.settled_ms == shown.state_timestamp_ms
    orders = [("orders", number) for number in range(4)]
    assert found.holders == dict.fromkeys([*orders, ("prices", 0)], one.member_id)
    assert found.topics is not None and {"orders", "prices"} <= found.topics
