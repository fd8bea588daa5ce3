"""The groups that `assign` is asked about: by options and files, and by a rebalance of a recorded history."""

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_why.assign.model import (
    GroupSpec,
    InputError,
    Member,
    Recorded,
    group_file,
    parse_members,
    parse_topics,
    read_group,
    recorded_group,
)
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.why.report import analyze
from kafka_why.wording import Names
from tests.unit.kafka_why.page_facts import played

TOPICS = {"orders": 2, "payments": 1}
BOTH = ("orders", "payments")


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("text", ["orders", "orders:", ":3", "orders:x", "orders:-1", "orders:2,"])
def test_invalid_topic_argument_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="is not TOPIC:PARTITIONS"):
        parse_topics(text)


@pytest.mark.parametrize(
    ("text", "message"), [("a,,b", "a member without an id"), ("=orders", "without an id"), ("a,a", "twice")]
)
def test_invalid_members_argument_is_rejected(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_members(text, TOPICS)


def test_group_file_is_read_in_full(tmp_path: Path) -> None:
    content = {
        "topics": TOPICS,
        "members": {
            "a": {"topics": ["orders"], "assignment": {"orders": [0, 1]}},
            "b": {"instance_id": "i-2", "rack": "east"},
        },
        "weights": {"orders": [900, 30]},
        "racks": {"orders": [["east", "west"], ["west"]]},
    }
    assert read_group(written(tmp_path / "group.json", content)) == GroupSpec(
        TOPICS,
        {"a": Member(("orders",)), "b": Member(BOTH, "i-2", "east")},
        {"a": frozenset({TopicPartition("orders", 0), TopicPartition("orders", 1)}), "b": frozenset()},
        {TopicPartition("orders", 0): 900, TopicPartition("orders", 1): 30},
        {"orders": [["east", "west"], ["west"]]},
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"topics": TOPICS}, "missing required field `members`"),
        ({"topics": TOPICS, "members": {"a": {"topic": ["orders"]}}}, "unknown field `topic`"),
        ({"topics": TOPICS, "members": {"a": {"assignment": [0]}}}, "Expected `object"),
    ],
)
def test_invalid_group_file_is_rejected_by_name(tmp_path: Path, content: Any, message: str) -> None:
    path = written(tmp_path / "group.json", content)
    with pytest.raises(InputError, match=message) as caught:
        read_group(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": {}}, "the group has no members"),
        ({"topics": {"orders": 0}}, "topic orders has 0 partitions"),
        ({"members": {"a": Member(())}}, "member a does not subscribe to any topic"),
        (
            {"members": {"a": Member(("order",))}},
            "member a subscribes to order, which is none of the topics: orders, payments",
        ),
        (
            {"current": {"a": {TopicPartition("orders", 2)}}},
            "the current assignment has orders-2, but orders has 2 partitions",
        ),
        ({"weights": {TopicPartition("prices", 0): 1}}, "weights has prices-0, but there is no such topic"),
        ({"weights": {TopicPartition("orders", 0): -1}}, "weight -1 of orders-0 is negative"),
        ({"racks": {"orders": [["east"]]}}, "racks of topic orders: each of its partitions"),
        (
            {"current": {member_id: {TopicPartition("orders", 1)} for member_id in "ab"}},
            "the current assignment gives orders-1 to 2 members",
        ),
    ],
)
def test_inconsistent_group_spec_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GroupSpec(**{"topics": TOPICS, "members": {"a": Member(BOTH)}, **changes})


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


def recorded(*commands: str, number: int = -1) -> Recorded:
    """Return the group of the last rebalance, or of another, with short names for its members."""
    entries = played(*commands)
    found = recorded_group(entries, analyze(entries).rebalances[number])
    names = Names([*found.group.members, *(found.group.current or {})])
    members = {names.of(m): member for m, member in found.group.members.items()}
    current = {names.of(m): held for m, held in (found.group.current or {}).items()}
    return Recorded(
        GroupSpec(found.group.topics, members, current or None), [names.of(m) for m in found.gone]
    )


def orders(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", number) for number in numbers)


def test_members_have_their_subscriptions_and_previous_partitions() -> None:
    """Partitions that are there are those of either assignment."""
    found = recorded(*TWO_WORKERS)
    members = {"a": Member(("orders",)), "b": Member(("orders", "payments"))}
    assert found == Recorded(GroupSpec({"orders": 3, "payments": 1}, members, {"a": orders(0, 1, 2)}), [])


def test_member_that_left_in_the_rebalance_is_included_and_reported() -> None:
    """So that its partitions have a last owner: their moves are necessary."""
    found = recorded(*TWO_WORKERS, *A_DIES, "sync b assign=@b:orders-0+orders-1+orders-2+payments-0")
    assert found.gone == ["a"]
    assert found.group.members.keys() == {"a", "b"}
    assert found.group.current is not None
    assert found.group.current["a"] == orders(0, 1)


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ((*TWO_WORKERS, *A_DIES), "no generation with an assignment"),
        (
            ("at 0s", "join a api=3 session=30s", "at 5s", "sync a assign=@a:orders-0"),
            "members' subscriptions",
        ),
        (("topics orders=3", "A e0 names[orders]", "at 1s", "B e0 names[orders]"), "--from-group"),
    ],
)
def test_rebalance_without_enough_recorded_data_is_an_input_error(
    commands: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        recorded(*commands)


def test_group_spec_survives_a_round_trip_through_a_file(tmp_path: Path) -> None:
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
