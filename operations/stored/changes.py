"""The differences between two states: group by group, field by field, in words and as data."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any

from msgspec import Struct, structs

from kafka_why.contract.kafka.snapshot import named
from kafka_why.contract.protocols.subscriptions import ProtocolError, by_topic, decode_assignment
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.groups.render import assignment_text
from kafka_why.wording import VisibleText, visible, visible_text
from operations.stored.text import time_text
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import AssignedPartitions, ConsumerGroup
from state.kafka.group import ConfigsOnly
from state.kafka.share_group import ShareGroup
from state.rocketmq.group import RocketMqGroup

_DURATIONS = frozenset({"delay_ms", "initial_remaining_ms", "rebalance_timeout_ms", "session_timeout_ms"})
# The collections of a group, each with the words for one entry.
_ENTRY_NAMES = {
    "members": "member",
    "static_members": "static member",
    "pending_members": "pending member",
    "offsets": "offset of",
    "pending": "pending offsets of",
    "ended": "end of a transaction of producer",
    "partitions_per_topic": "partitions of",
    "reported_partition_counts": "reported partitions of",
    "consumers": "consumers at broker",
    "channels": "consumer on",
    "producers": "producer on",
    "subscriptions": "subscription to",
    "locks": "lock of",
    "request_modes": "request mode of",
    "target": "target of",
    "topics": "topic",
    "resolved_regexes": "pattern",
    "checked_regexes": "checked pattern",
    "initializing": "initializing partitions of",
    "initialized": "initialized partitions of",
    "deleting": "deleting partitions of",
}
_PROTOCOLS: dict[type, str] = {
    ClassicGroup: "Kafka",
    ConsumerGroup: "Kafka (consumer)",
    ShareGroup: "Kafka (share)",
    RocketMqGroup: "RocketMQ",
    ConfigsOnly: "Kafka (settings without a group)",
}
_SHOWN_HASH_DIGITS = 8


class ChangeKind(StrEnum):
    """The kinds of changes to a group or to an entry of it."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class FieldChange(Struct, frozen=True):
    """A field that differs. `field` is its path, `members/ID/assignment`; `text` is the change in words.

    `before` and `after` are data as in JSON, bytes as hexadecimal digits; None where an entry is missing.
    """

    field: str
    kind: ChangeKind
    before: Any
    after: Any
    text: str


class GroupChange(Struct, frozen=True):
    """A group that differs. `fields` is empty where the group was added or removed as a whole."""

    group_id: str
    kind: ChangeKind
    fields: list[FieldChange]


def compare_groups(
    group_id: str, before: AnyGroup | None, after: AnyGroup | None, *, ignore_times: bool = False
) -> GroupChange | None:
    """Return the changes of a group between two states, or None if there are none. `before` or `after` is
    None if that state does not have the group.

    With `ignore_times`, changes of times are left out, such as those that a heartbeat makes. Positions in the
    log count as times.
    """
    if before is None or after is None:
        if before is after:
            return None
        return GroupChange(group_id, ChangeKind.REMOVED if after is None else ChangeKind.ADDED, [])
    if type(before) is not type(after):
        kinds = [_PROTOCOLS[type(group)] for group in (before, after)]
        text = f"protocol {kinds[0]} -> {kinds[1]}"
        return GroupChange(
            group_id,
            ChangeKind.CHANGED,
            [FieldChange("protocol", ChangeKind.CHANGED, kinds[0], kinds[1], text)],
        )
    fields = [
        _field_change(path, old, new)
        for path, old, new in _differences((), _with_names(before, after), _with_names(after, before))
        if not (ignore_times and _is_time(path))
    ]
    return GroupChange(group_id, ChangeKind.CHANGED, fields) if fields else None


def change_text(change: GroupChange) -> VisibleText:
    """Return a line for the group, and a line for each field that differs."""
    head = f"group {change.group_id}"
    if not change.fields:
        return visible(f"{head}: {change.kind}")
    return visible_text([f"{head}:", *(f"  {field.text}" for field in change.fields)])


def _with_names(group: AnyGroup, other: AnyGroup) -> AnyGroup:
    """Return a copy with partitions as text by topic name if the group has epochs, or else the group itself.

    `other` is the group with which it is compared.
    """
    if not isinstance(group, ConsumerGroup | ShareGroup):
        return group
    names = group.names_by_id()
    target = {m: assignment_text(named(partitions, names)) for m, partitions in group.target.items()}
    if isinstance(group, ShareGroup):
        topics = {
            kind: {
                t.name: assignment_text({t.name: sorted(t.partitions)}) for t in getattr(group, kind).values()
            }
            for kind in ("initializing", "initialized", "deleting")
        }
        share_members = {
            m: structs.replace(member, assigned=assignment_text(named(member.assigned, names)))
            for m, member in group.members.items()
        }
        return structs.replace(group, members=share_members, target=target, **topics)
    members = {}
    for member_id, member in group.members.items():
        compared = other.members.get(member_id, member) if isinstance(other, ConsumerGroup) else member
        members[member_id] = structs.replace(
            member,
            assigned=_held_text(member.assigned, compared.assigned, names),
            pending_revocation=_held_text(member.pending_revocation, compared.pending_revocation, names),
        )
    return structs.replace(group, members=members, target=target)


def _held_text(held: AssignedPartitions, compared: AssignedPartitions, names: dict[bytes, str]) -> str | None:
    """Return `orders:0,1`, followed by the assignment epochs if they alone differ."""
    text = assignment_text(named(held, names))
    same = {topic_id: sorted(epochs) for topic_id, epochs in held.items()} == {
        topic_id: sorted(epochs) for topic_id, epochs in compared.items()
    }
    if not same or held == compared:
        return text
    epochs = sorted({epoch for of_topic in held.values() for epoch in of_topic.values()})
    return f"{text} since epoch {', '.join(map(str, epochs))}"


_MISSING: Any = object()
_Path = tuple[Any, ...]


def _differences(path: _Path, before: Any, after: Any) -> Iterator[tuple[_Path, Any, Any]]:
    if isinstance(before, Struct) and type(before) is type(after):
        for name in before.__struct_fields__:
            yield from _differences((*path, name), _value(before, name), _value(after, name))
    elif isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(key for key in after if key not in before)]
        for key in keys:
            yield from _entry_differences((*path, key), before.get(key, _MISSING), after.get(key, _MISSING))
    elif before != after:
        yield path, before, after


def _value(struct: Struct, name: str) -> Any:
    """Return the value of a field. Entries of pending offsets are named by their requests."""
    value = getattr(struct, name)
    return {entry.request: entry for entry in value} if name == "pending" else value


def _entry_differences(path: _Path, before: Any, after: Any) -> Iterator[tuple[_Path, Any, Any]]:
    # A topic's offsets are a map: its entries are named one by one.
    if before is _MISSING and isinstance(after, dict):
        before = {}
    if after is _MISSING and isinstance(before, dict):
        after = {}
    if before is _MISSING or after is _MISSING:
        yield path, before, after
    else:
        yield from _differences(path, before, after)


def _field_change(path: _Path, before: Any, after: Any) -> FieldChange:
    kind = (
        ChangeKind.ADDED
        if before is _MISSING
        else ChangeKind.REMOVED
        if after is _MISSING
        else ChangeKind.CHANGED
    )
    subject, name = _subject(path)
    if kind is ChangeKind.CHANGED:
        text = f"{subject}{_text(name, before)} -> {_text(name, after)}"
    else:
        value = _text(name, after if kind is ChangeKind.ADDED else before)
        text = f"{kind}: {subject.removesuffix(': ').rstrip()}{f' ({value})' if value else ''}"
    return FieldChange("/".join(_key(key) for key in path), kind, _data(before), _data(after), text)


def _subject(path: _Path) -> tuple[str, str]:
    """Return the words before the value, and the name of the field that decides how the value is written."""
    first, *keys = path
    if first not in _ENTRY_NAMES or not keys:
        return f"{_words(str(path[-1]))} ", str(path[-1])
    if first == "offsets":
        topic, partition, *rest = keys
        subject = f"{_ENTRY_NAMES[first]} {topic}[{partition}]"
    else:
        key, *rest = keys
        if first == "consumers" and rest:
            return _subject(tuple(rest))
        subject = f"{_ENTRY_NAMES[first]} {_key(key)}"
    if not rest:
        return f"{subject}: ", first
    return f"{subject}: {_words(str(rest[-1]))} ", str(rest[-1])


def _words(field: str) -> str:
    return field.removesuffix("_ms").removesuffix("_at").replace("_", " ")


def _key(key: Any) -> str:
    return f"{key.topic}@{key.broker_name}[{key.queue_id}]" if isinstance(key, MessageQueue) else str(key)


def _is_time(path: _Path) -> bool:
    name = str(path[-1])
    return name == "position" or (name.endswith("_ms") and name not in _DURATIONS)


def _text(name: str, value: Any) -> str:
    """Return a value in words. An empty value of a field is `none`. A struct's empty fields are left out."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_ms"):
        return f"{value} ms" if name in _DURATIONS else (time_text(value) or "none")
    if isinstance(value, bytes):
        return _bytes_text(name, value)
    if isinstance(value, Struct):
        fields = structs.asdict(value).items()
        shown = ((field, it) for field, it in fields if it is not False and (it or it == 0))
        return ", ".join(f"{_words(field)} {_text(field, it)}" for field, it in shown)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(name, item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"[{', '.join(f'{_key(key)}: {_text(name, item)}' for key, item in value.items())}]"
    return str(value)


def _bytes_text(name: str, value: bytes) -> str:
    if name == "assignment":
        try:
            partitions = decode_assignment(value).partitions if value else ()
        except ProtocolError:
            pass
        else:
            return assignment_text(by_topic(partitions)) or "no partitions"
    return f"{len(value)} bytes ({sha256(value).hexdigest()[:_SHOWN_HASH_DIGITS]})"


def _data(value: Any) -> Any:
    """Return a value as JSON has it."""
    if value is _MISSING:
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Struct):
        return {field: _data(it) for field, it in structs.asdict(value).items()}
    if isinstance(value, Mapping):
        return {_key(key): _data(it) for key, it in value.items()}
    if isinstance(value, list | tuple):
        return [_data(item) for item in value]
    return value
