"""A rebalance of a recorded history as the question that `assign` answers."""

from pathlib import Path

import pytest

from assignors.kafka.api import TopicPartition
from insight.assign.model import GroupSpec, InputError, Member
from insight.assign.parsing import group_file, read_group
from insight.assign.recorded import Recorded, recorded_group
from insight.why.names import Names
from insight.why.rebalances import rebalances
from tests.unit.insight.page_facts import played

TWO_WORKERS = (
    "config group.initial.rebalance.delay.ms=0",
    "at 0s",
    "join a api=3 topics=orders session=10s",
    "sync a assign=@a:orders-0+orders-1+orders-2",
    "at 1s",
    "join b api=3 topics=orders,payments session=30s",
    "at 2s",
    "join a id=@a topics=orders session=10s",
    "sync a assign=@a:orders-0+orders-1,@b:orders-2+payments-0",
    "sync b",
)
A_DIES = ("at 11s", "heartbeat b", "at 13s", "join b id=@b topics=orders,payments session=30s", "at 14s")
B_ALONE = ("sync b assign=@b:orders-0+orders-1+orders-2+payments-0",)


def recorded(*commands: str, number: int = -1) -> Recorded:
    """The group of the last rebalance, or of another, with short names for its members."""
    entries = played(*commands)
    found = recorded_group(entries, rebalances(entries)[number])
    names = Names([*found.group.members, *(found.group.current or {})])
    members = {names.of(m): member for m, member in found.group.members.items()}
    current = {names.of(m): held for m, held in (found.group.current or {}).items()}
    return Recorded(
        GroupSpec(found.group.topics, members, current or None), [names.of(m) for m in found.gone]
    )


def orders(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", number) for number in numbers)


def test_the_first_generation_held_nothing() -> None:
    found = recorded(*TWO_WORKERS, number=0)
    assert found == Recorded(GroupSpec({"orders": 3}, {"a": Member(("orders",))}), [])


def test_members_have_what_they_subscribe_to_and_what_they_held_before() -> None:
    """Partitions that are there are those of either assignment."""
    found = recorded(*TWO_WORKERS)
    members = {"a": Member(("orders",)), "b": Member(("orders", "payments"))}
    assert found == Recorded(GroupSpec({"orders": 3, "payments": 1}, members, {"a": orders(0, 1, 2)}), [])


def test_who_left_in_it_is_there_and_named() -> None:
    """So that its partitions have a last owner: their moves are necessary."""
    found = recorded(*TWO_WORKERS, *A_DIES, *B_ALONE)
    assert found.gone == ["a"]
    assert found.group.members.keys() == {"a", "b"}
    assert found.group.current is not None
    assert found.group.current["a"] == orders(0, 1)


def test_without_an_assignment_there_is_no_question() -> None:
    with pytest.raises(InputError, match="no generation with an assignment"):
        recorded(*TWO_WORKERS, *A_DIES)


def test_without_subscriptions_there_is_no_question() -> None:
    with pytest.raises(InputError, match="what the members subscribe to"):
        recorded("at 0s", "join a api=3 session=30s", "at 5s", "sync a assign=@a:orders-0")


def test_a_group_of_the_consumer_protocol_is_asked_otherwise() -> None:
    with pytest.raises(InputError, match="--from-group"):
        recorded("topics orders=3", "A e0 names[orders]", "at 1s", "B e0 names[orders]")


def test_a_group_is_the_same_after_it_was_a_file(tmp_path: Path) -> None:
    group = GroupSpec(
        {"orders": 2, "payments": 1},
        {"a": Member(("orders",), "i-1", "east"), "b": Member(("orders", "payments"))},
        {"a": orders(1), "b": frozenset()},
        {TopicPartition("orders", 1): 7, TopicPartition("orders", 0): 0, TopicPartition("payments", 0): 3},
        {"orders": [["east"], ["west", "east"]]},
    )
    for one in (group, GroupSpec(group.topics, group.members)):
        file = tmp_path / "group.json"
        file.write_bytes(group_file(one))
        assert read_group(file) == one
