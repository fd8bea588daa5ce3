"""Turns answers into a form in which two servers can be compared: a mapping of paths to values, all as text.

Replaced are: a member id by the client that got it (`@A1` is A's first id); the random part of a member id
that no client of the case got; producer ids; group ids by their names in the script; topic ids by the topics'
names; the addresses and the texts of errors in a FindCoordinator response. Sorted are members, groups and the
results of OffsetFetch, which Kafka keeps in hash maps. All else is left as it came.
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
# Lists without an order: the field that holds the list, and the fields that identify its items.
_UNORDERED = {
    "members": ("member_id",),
    "groups": ("group_id",),
    "results": ("group_id",),
    "topics": ("name", "topic_id"),
    "partitions": ("partition_index",),
    "coordinators": ("key",),
}
# Fields of FindCoordinator whose values are each server's own, and the values that stand for none.
_OWN = ("host", "port", "error_message")
_NONE = ("''", "-1", "None")
_ORDERED = ("OffsetCommitResponse", "OffsetDeleteResponse", "LeaveGroupResponse", "TxnOffsetCommitResponse")


def normalised(message: Any, told: Told) -> Answer:
    """Return a decoded answer's values by paths such as `topics.0.partitions.1.error_code`."""
    flat = dict(_flat("", message, told))
    if type(message).__name__ == "FindCoordinatorResponse":
        own = [path for path in flat if path.rpartition(".")[2] in _OWN]
        flat.update({path: "none" if flat[path] in _NONE else "given" for path in own})
    if hasattr(message, "leader") and message.member_id:
        flat["member_id's form"] = _UUID.sub("<uuid>", message.member_id)
    return flat


def in_short(answer: Answer) -> str:
    """Return the answer as one line of text."""
    return " ".join(f"{path}={value}" for path, value in answer.items())


def _flat(path: str, value: Any, told: Told) -> Iterator[tuple[str, str]]:
    if isinstance(value, DataContainer):
        for name in value.fields:
            below = f"{path}.{name}" if path else name
            field_value = getattr(value, name)
            in_order = type(value).__name__.startswith(_ORDERED)
            yield from _flat(below, field_value if in_order else _sorted(name, field_value, told), told)
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


def _sorted(name: str, value: Any, told: Told) -> Any:
    if name not in _UNORDERED or not value:
        return value
    # The cases share the servers, so ListGroups has other cases' groups too.
    if hasattr(value[0], "group_type"):
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
