"""The groups that `assign` is asked about, by options and files."""

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_why.contract.protocols.subscriptions import TopicPartition
from operations.assign.model import GroupSpec, InputError, Member
from operations.assign.parsing import parse_members, parse_topics, read_group

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
