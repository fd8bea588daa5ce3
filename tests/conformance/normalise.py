"""Turns answers into a form in which two servers can be compared: a mapping of paths to values, all as text.

Replaced are: a member id by the client that got it (`@A1` is A's first id); the random part of a member id
that no client of the case got; producer ids; group ids by their names in the script; topic ids by the topics'
names; the addresses in a FindCoordinator response; the texts of errors in it and in those of consumer groups.
Sorted are members, groups, topics of share groups and the results of OffsetFetch, which Kafka keeps in hash
maps.

Which of several equal partitions a member gets is an assignor's choice, and Kafka's own depends on the order
of a hash map. So an assignment is the number of its partitions of each topic (of all topics, if the case says
`totals`), ConsumerGroupDescribe gets a list of partitions that two members have, ShareGroupDescribe how
evenly partitions are dealt (with `loose` nothing else of an assignment is compared), and a partition that
the script names by what the client was assigned has no number. Tasks are counted by subtopology, and the
partitions at an endpoint by topic. All else is left as it came.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from kafka.protocol.data_container import DataContainer
from kio.schema.errors import ErrorCode

from kafka_why.contract.protocols.subscriptions import (
    ProtocolError,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from tests.conformance.told import Told

Answer = dict[str, str]

_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$|^[0-9A-Za-z_-]{22}$")
# Lists without an order: the field that holds the list, and the fields that identify its items.
_UNORDERED = {
    "members": ("member_id",),
    "groups": ("group_id",),
    "results": ("group_id",),
    "topics": ("name", "topic_name", "topic_id"),
    "responses": ("topic_name", "name"),
    "partitions": ("partition_index",),
    "coordinators": ("key",),
    "configs": ("name",),
}
# Fields of FindCoordinator whose values are each server's own, and the values that stand for none.
_OWN = ("host", "port", "error_message")
_NONE = ("''", "-1", "None")
_OF_CONSUMERS = ("ConsumerGroup", "StreamsGroup", "IncrementalAlterConfigs")
_TEXTS = ("message", "status_detail")
_COUNTED = ("active_tasks", "standby_tasks", "warmup_tasks", "active_partitions", "standby_partitions")
_EPOCHS = ("member_epoch", "group_epoch", "assignment_epoch")
_NUMBER = re.compile(r"\((\d+)\)")
_BYTES = ("assignment", "member_assignment", "metadata", "member_metadata")
_ORDERED = ("OffsetCommitResponse", "OffsetDeleteResponse", "LeaveGroupResponse", "TxnOffsetCommitResponse")


def normalised(message: Any, told: Told, *, is_relative: bool = False) -> Answer:
    """Return a decoded answer's values by paths such as `topics.0.partitions.1.error_code`.

    With `is_relative` partitions have no number.
    """
    flat = dict(_flat("", message, told))
    if is_relative:
        flat = {path: value for path, value in flat.items() if not path.endswith("partition_index")}
    if type(message).__name__.startswith(_OF_CONSUMERS):
        given = {path: "none" if flat[path] in _NONE else "given" for path in flat if path.endswith(_TEXTS)}
        flat.update(given)
    if type(message).__name__ == "ConsumerGroupDescribeResponse":
        flat.update(_in_two_hands(message))
    if type(message).__name__ == "CreateTopicsResponse":
        flat = {path: value for path, value in flat.items() if ".configs" not in path}
    if type(message).__name__ == "ShareGroupDescribeResponse":
        flat.update(_dealt(message, told))
    if type(message).__name__ == "FindCoordinatorResponse":
        own = [path for path in flat if path.rpartition(".")[2] in _OWN]
        flat.update({path: "none" if flat[path] in _NONE else "given" for path in own})
    if hasattr(message, "leader") and message.member_id:
        flat["member_id's form"] = _UUID.sub("<uuid>", message.member_id.replace(told.prefix, ""))
    return flat


def lowered(answer: Answer, raised: int) -> Answer:
    """Return the answer with its epochs, also those in the texts of errors, as if they had been raised so
    much less. Epochs of a member that had none are as they are.
    """
    return {path: _lowered(path, value, raised) for path, value in answer.items()}


def _lowered(path: str, value: str, raised: int) -> str:
    if path.endswith("error_message"):
        return _NUMBER.sub(lambda found: f"({_less(int(found[1]), raised)})", value)
    return str(_less(int(value), raised)) if path.endswith(_EPOCHS) and value.isdigit() else value


def _less(epoch: int, raised: int) -> int:
    return epoch - raised if epoch > raised else epoch


def _flat(path: str, value: Any, told: Told) -> Iterator[tuple[str, str]]:
    if isinstance(value, DataContainer):
        for name in value.fields:
            below = f"{path}.{name}" if path else name
            field_value = getattr(value, name)
            in_order = type(value).__name__.startswith(_ORDERED)
            if name in _BYTES and isinstance(field_value, bytes) and field_value:
                yield below, _readable(field_value)
                continue
            yield from _flat(below, field_value if in_order else _sorted(name, field_value, told), told)
    elif path.endswith(_COUNTED) and value is not None:
        yield path, _sizes(value, told)
    elif path.endswith("topic_partitions") and value is not None:
        yield from _counts(path, value, told)
    elif isinstance(value, list):
        yield f"{path}.length", str(len(value))
        for index, item in enumerate(value):
            yield from _flat(f"{path}.{index}", item, told)
    elif path.endswith("error_code"):
        yield path, ErrorCode(value).name.upper()
    elif path.endswith("producer_id") and value >= 0:
        yield path, "a producer's id"
    else:
        yield path, _text(value, told)


def _counts(path: str, topics: Sequence[Any], told: Told) -> Iterator[tuple[str, str]]:
    if told.loose:
        yield path, "given"
        return
    if told.totals:
        yield path, f"{sum(len(topic.partitions) for topic in topics)} partitions"
        return
    yield f"{path}.length", str(len(topics))
    for topic in topics:
        name = getattr(topic, "topic_name", None)
        named = name and name.replace(told.prefix, "")
        yield f"{path}.{_text(topic.topic_id, told)}", f"{len(topic.partitions)} partitions of {named}"


def _sizes(entries: Sequence[Any], told: Told) -> str:
    """Return the numbers of tasks by subtopology, or of an endpoint's partitions by topic."""
    names = [getattr(one, "topic", "").replace(told.prefix, "") or one.subtopology_id for one in entries]
    counts = sorted(zip(names, (len(one.partitions) for one in entries), strict=True))
    return ", ".join(f"{count} of {name}" for name, count in counts)


def _in_two_hands(described: Any) -> Iterator[tuple[str, str]]:
    for number, group in enumerate(described.groups):
        for kind in ("assignment", "target_assignment"):
            times = Counter(
                (topic.topic_name, index)
                for member in group.members
                for topic in getattr(member, kind).topic_partitions
                for index in topic.partitions
            )
            twice = sorted(partition for partition, count in times.items() if count > 1)
            yield f"groups.{number}: in {kind} of two members", str(twice)


def _dealt(described: Any, told: Told) -> Iterator[tuple[str, str]]:
    """Yield how evenly each topic is dealt among the members of a share group that all have their target.
    If they subscribe to the same topics, yield the number of their partitions, too.
    """
    for number, group in enumerate(sorted(described.groups, key=lambda group: str(group.group_id))):
        members = group.members
        if not members or any(member.member_epoch != group.assignment_epoch for member in members):
            continue
        holders: dict[UUID, Counter[int]] = {}
        sizes = []
        for member in members:
            sizes.append(sum(len(topic.partitions) for topic in member.assignment.topic_partitions))
            for topic in member.assignment.topic_partitions:
                holders.setdefault(topic.topic_id, Counter()).update(topic.partitions)
        for topic_id, counts in holders.items():
            dealt = f"{len(counts)} partitions, each to {_span(counts.values())}"
            yield f"groups.{number}: {_text(topic_id, told)} is dealt", dealt
        if len({frozenset(member.subscribed_topic_names) for member in members}) == 1:
            yield f"groups.{number}: partitions of a member", _span(sizes)


def _span(numbers: Collection[int]) -> str:
    return f"{min(numbers)} to {max(numbers)}"


def _readable(data: bytes) -> str:
    with suppress(ProtocolError):
        version, assigned = decode_version(data), decode_assignment(data)
        if encode_assignment(assigned, version) == data:
            counts = sorted(Counter(one.topic for one in assigned.partitions).items())
            return f"v{version} {counts} user data {assigned.user_data!r}"
    with suppress(ProtocolError):
        version, subscription = decode_version(data), decode_subscription(data)
        if subscription.owned_partitions:
            counts = sorted(Counter(one.topic for one in subscription.owned_partitions).items())
            return f"v{version} {subscription.topics} owned {counts} rack {subscription.rack_id}"
    return repr(data)


def _sorted(name: str, value: Any, told: Told) -> Any:
    if name == "subscribed_topic_names":
        return sorted(value)
    if name not in _UNORDERED or not value or isinstance(value, int):  # or a topic's number of partitions
        return value
    # The cases share the servers, so ListGroups has other cases' groups too.
    if hasattr(value[0], "group_type"):
        value = [group for group in value if group.group_id.startswith(told.prefix)]
    known = [key for key in _UNORDERED[name] if hasattr(value[0], key)] if value else []
    return sorted(value, key=lambda item: [_text(getattr(item, key), told) for key in known])


def _text(value: Any, told: Told) -> str:
    if isinstance(value, UUID):
        names = {topic_id: name for name, topic_id in told.topic_ids.items()}
        return f"id of {names.get(value, 'no topic').replace(told.prefix, '')}"
    if isinstance(value, str):
        text = told.names.get(value, value).replace(told.prefix, "")
        for member_id, name in told.names.items():
            text = text.replace(member_id, name)
        return repr(_UUID.sub("<uuid>", text))
    if isinstance(value, set | frozenset):
        return str(sorted(value))
    return repr(value)
