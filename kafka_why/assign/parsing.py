"""The input formats of a group: `orders:12,payments:6`, `a,b=orders+payments`, and JSON files.

A file of a whole group is

{"topics": {"orders": 2, "payments": 1}, "members": {"a": {"topics": ["orders"], "assignment": {"orders": [0,
1]}}, "b": {"instance_id": "i-2", "rack": "east"}}, "weights": {"orders": [900, 30]}, "racks": {"orders":
[["east", "west"], ["west", "east"]]}}

Only `topics` and `members` are required. A member without `topics` subscribes to all topics. `assignment` is
a member's current assignment. If no member has one, the current assignment is unknown. Weights and racks are
by partition number.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from kafka_why.assign.model import GroupSpec, InputError, Member
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition, by_topic
from kafka_why.numbers import INT32_MAX, is_whole_number, parse_whole_number
from kafka_why.why.moves import Holdings

MAX_MEMBERS = 100_000
"""The maximum number of members, if the user gives only a number."""

T = TypeVar("T")

ByTopic = dict[str, list[int]]


class _Member(Struct, forbid_unknown_fields=True):
    topics: list[str] | None = None
    instance_id: str | None = None
    rack: str | None = None
    assignment: ByTopic | None = None


class _Group(Struct, forbid_unknown_fields=True):
    topics: dict[str, int]
    members: dict[str, _Member]
    weights: ByTopic = {}
    racks: dict[str, list[list[str]]] = {}


def parse_topics(text: str) -> dict[str, int]:
    """Parse `orders:12,payments:6`, or `@FILE` with the equivalent JSON object. Raises InputError."""
    if text.startswith("@"):
        return read_json(Path(text[1:]), dict[str, int])
    topics: dict[str, int] = {}
    for word in text.split(","):
        topic, colon, number = word.strip().rpartition(":")
        if not (topic and colon):
            raise InputError(f"{word!r} is not TOPIC:PARTITIONS")
        topics[topic] = _count(number, f"{word!r} is not TOPIC:PARTITIONS", INT32_MAX)
    return topics


def parse_members(text: str, topics: Mapping[str, int]) -> dict[MemberId, Member]:
    """Parse `a,b=orders+payments`: member ids, each with its topics or else all of `topics`. Raises
    InputError.

    A number N gives the members c1 to cN.
    """
    if is_whole_number(text):
        number, width = _count(text, "too many members", MAX_MEMBERS), len(text)
        return {f"c{n:0{width}}": Member(tuple(topics)) for n in range(1, number + 1)}
    members: dict[MemberId, Member] = {}
    for word in text.split(","):
        member_id, equals, wanted = word.strip().partition("=")
        if not member_id:
            raise InputError(f"{text!r} has a member without an id")
        if member_id in members:
            raise InputError(f"member {member_id} is named twice")
        members[member_id] = Member(tuple(filter(None, wanted.split("+"))) if equals else tuple(topics))
    return members


def _count(text: str, refusal: str, at_most: int) -> int:
    try:
        return parse_whole_number(text, 0, at_most)
    except ValueError as error:
        raise InputError(f"{refusal}: {error}") from error


def read_group(path: Path) -> GroupSpec:
    """Read the file of a whole group. Raises InputError."""
    read = read_json(path, _Group)
    known = any(member.assignment is not None for member in read.members.values())
    return GroupSpec(
        read.topics,
        {
            member_id: Member(tuple(read.topics if m.topics is None else m.topics), m.instance_id, m.rack)
            for member_id, m in read.members.items()
        },
        {name: partitions(m.assignment or {}) for name, m in read.members.items()} if known else None,
        _weights(read.weights),
        read.racks,
    )


def group_file(group: GroupSpec) -> bytes:
    """Return a group in the module's format. It has the partitions that members hold in `current`, and no
    others.
    """
    members = {
        member_id: _Member(
            list(member.topics),
            member.instance_id,
            member.rack,
            None if group.current is None else by_topic(group.current.get(member_id, ())),
        )
        for member_id, member in group.members.items()
    }
    weights = {
        topic: [group.weights.get(TopicPartition(topic, n), 0) for n in range(number)]
        for topic, number in group.topics.items()
        if group.weights
    }
    racks = {topic: [list(of_one) for of_one in of_topic] for topic, of_topic in group.racks.items()}
    return msgspec.json.encode(_Group(dict(group.topics), members, weights, racks))


def read_weights(path: Path) -> dict[TopicPartition, int]:
    """Read a file with weights by partition number, such as `{"orders": [900, 30]}`. Raises InputError."""
    return _weights(read_json(path, ByTopic))


def read_assignment(path: Path) -> Holdings:
    """Read a file with an assignment, such as `{"a": {"orders": [0, 1]}}`. Raises InputError."""
    read = read_json(path, dict[str, ByTopic])
    return {member_id: partitions(assignment) for member_id, assignment in read.items()}


def partitions(assignment: Mapping[str, list[int]]) -> frozenset[TopicPartition]:
    """Return the partitions of one member's assignment."""
    return frozenset(TopicPartition(topic, n) for topic, numbers in assignment.items() for n in numbers)


def read_json(path: Path, kind: type[T]) -> T:
    """Return a file's content. Raises InputError if it cannot be read or has another structure."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _weights(by_topic: Mapping[str, list[int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, number): weight
        for topic, weights in by_topic.items()
        for number, weight in enumerate(weights)
    }
