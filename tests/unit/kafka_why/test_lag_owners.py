"""Who holds which partition by a group's view, and when that is not known."""

import pytest
from msgspec.structs import replace

from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.lag.definitions import UNKNOWN, Ownership, ownership
from state.kafka.protocols import view_of
from tests.harness.histories import Recorder
from tests.unit.kafka_why.page_facts import member, view

P, Q = ("orders", 4), ("payments", 0)
GROUP = view(members=[member("m", P), member("n", Q)], subscribed_topics=["orders"], state_timestamp_ms=7)


HELD = {P: "m", Q: "n"}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param(GROUP, Ownership(7, HELD, frozenset({"orders"})), id="what the leader assigned"),
        pytest.param(view(state="Empty", state_timestamp_ms=7), Ownership(7, {}, None), id="no members"),
        pytest.param(
            replace(GROUP, subscribed_topics=None),
            Ownership(7, HELD, frozenset()),
            id="subscriptions unknown",
        ),
        pytest.param(replace(GROUP, state="PreparingRebalance"), UNKNOWN, id="members join"),
        pytest.param(replace(GROUP, state="CompletingRebalance"), UNKNOWN, id="the leader assigns"),
        pytest.param(replace(GROUP, state="Assigning"), UNKNOWN, id="the coordinator assigns"),
        pytest.param(replace(GROUP, state="Reconciling"), UNKNOWN, id="members reconcile"),
        pytest.param(view(truncated=True), UNKNOWN, id="members left out"),
        pytest.param(
            replace(GROUP, members=[replace(member("m", P), assignment=b"\x00")]), UNKNOWN, id="unreadable"
        ),
        pytest.param(
            replace(GROUP, protocol_type="connect"),
            Ownership(7, {}, frozenset({"orders"})),
            id="no consumers",
        ),
    ],
)
def test_ownership_in_a_classic_group_follows_its_view(group: GroupSnapshot, expected: Ownership) -> None:
    assert ownership(group) == expected


def test_consumer_group_members_own_the_partitions_they_may_use() -> None:
    recorder = Recorder()
    recorder.play("topics orders=4 prices=1", "at 4s", "A e0", "A e1 owned[orders 0-3]", "at 8s", "A e1")
    group = recorder.any_group()
    assert group is not None
    shown = view_of(group)
    assert isinstance(shown, GroupSnapshot)
    found = ownership(shown)
    (one,) = shown.members
    assert found.settled_ms == shown.state_timestamp_ms
    orders = [("orders", number) for number in range(4)]
    assert found.holders == dict.fromkeys([*orders, ("prices", 0)], one.member_id)
    assert found.topics is not None and {"orders", "prices"} <= found.topics
