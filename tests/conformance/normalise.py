"""Answers in a form in which two servers can be compared: a mapping of paths to values, all as text.

What is replaced: member ids by who was given them (`@A1` is the first id of A), the random part of those
nobody was told, group ids by their names in the script, topic ids by the topics' names. What is put in order:
members, groups, and what OffsetFetch tells, which Kafka keeps in hash maps. All else stands as it came.
"""

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from kafka.protocol.data_container import DataContainer
from kio.schema.errors import ErrorCode

from tests.conformance.requests import Told

Answer = dict[str, str]

_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$")
# Lists without an order, by the field that holds them and those that tell their items apart.
_UNORDERED = {
    "members": ("member_id",),
    "groups": ("group_id",),
    "results": ("group_id",),
    "topics": ("name", "topic_id"),
    "partitions": ("partition_index",),
}
_ORDERED = ("OffsetCommitResponse", "OffsetDeleteResponse", "LeaveGroupResponse")


def normalised(message: Any, told: Told) -> Answer:
    """A decoded answer, by paths such as `topics.0.partitions.1.error_code`."""
    flat = dict(_flat("", message, told))
    if hasattr(message, "leader") and message.member_id:
        flat["member_id's form"] = _UUID.sub("<uuid>", message.member_id)
    return flat


def in_short(answer: Answer) -> str:
    """The answer in a line."""
    return " ".join(f"{path}={value}" for path, value in answer.items())


def _flat(path: str, value: Any, told: Told) -> Iterator[tuple[str, str]]:
    if isinstance(value, DataContainer):
        for name in value.fields:
            below = f"{path}.{name}" if path else name
            held = getattr(value, name)
            in_order = type(value).__name__.startswith(_ORDERED)
            yield from _flat(below, held if in_order else _sorted(name, held, told), told)
    elif isinstance(value, list):
        yield f"{path}.length", str(len(value))
        for index, item in enumerate(value):
            yield from _flat(f"{path}.{index}", item, told)
    elif path.endswith("error_code"):
        yield path, ErrorCode(value).name.upper()
    else:
        yield path, _text(value, told)


def _sorted(name: str, value: Any, told: Told) -> Any:
    if name not in _UNORDERED or not value:
        return value
    if hasattr(value[0], "group_type"):  # servers are shared: other cases' groups are listed too
        value = [group for group in value if group.group_id.startswith(told.prefix)]
    known = [key for key in _UNORDERED[name] if hasattr(value[0], key)] if value else []
    return sorted(value, key=lambda item: [_text(getattr(item, key), told) for key in known])


def _text(value: Any, told: Told) -> str:
    if isinstance(value, UUID):
        names = {topic_id: name for name, topic_id in told.topic_ids.items()}
        return f"id of {names.get(value, 'no topic')}"
    if isinstance(value, str):
        text = told.names.get(value, value).replace(told.prefix, "")
        for member_id, name in told.names.items():
            text = text.replace(member_id, name)
        return repr(_UUID.sub("<uuid>", text))
    if isinstance(value, set | frozenset):
        return str(sorted(value))
    return repr(value)
