"""Builds the requests of share groups, and of topics that a script makes, enlarges and deletes."""

from typing import Any

from tests.conformance.script import Step
from tests.conformance.told import Told

_MINE = "mine"
_TIMEOUT_MS = 30_000
_ON_ONE_BROKER = 1

Body = dict[str, Any]


def share(step: Step, version: int, told: Told) -> Body:
    """ShareGroupHeartbeat, by default a keep-alive with the client's member epoch.

    `epoch=0` joins, `epoch=mine-1` is the one before the client's own. Each field can be given:
    `names=orders,~x` (null, or nothing for none), `rack`, `id`. A topic `~x` is of this case alone.
    """
    option = step.options
    epoch = epoch_of(option.get("epoch", _MINE), told.generations.get(step.client, 0))
    names = option.get("names", "null" if epoch else "orders")
    own_id = f"member-{told.prefix}{step.client}"
    return {
        "group_id": told.group(option.get("group", "g")),
        "member_id": told.id(option.get("id", told.own(step.client) or own_id)),
        "member_epoch": epoch,
        "rack_id": option.get("rack"),
        "subscribed_topic_names": None if names == "null" else _topics(names, told),
    }


def epoch_of(text: str, own: int) -> int:
    """Return the member epoch that `text` stands for: a number, or `mine` and a difference."""
    return own + int(text.removeprefix(_MINE) or 0) if text.startswith(_MINE) else int(text)


def _topics(text: str, told: Told) -> list[str]:
    return [told.topic(name) for name in text.split(",") if name]


def sharers(step: Step, version: int, told: Told) -> Body:
    """Build a ShareGroupDescribe."""
    return {
        "group_ids": [told.group(name) for name in step.options.get("groups", "g").split(",")],
        "include_authorized_operations": step.options.get("operations") == "yes",
    }


def offsets(step: Step, version: int, told: Told) -> Body:
    """Build a DescribeShareGroupOffsets: `topics=orders:0,orders:1`, by default all."""
    wanted = step.options.get("topics", "all")
    by_topic: dict[str, list[int]] = {}
    for text in filter(None, "" if wanted == "all" else wanted.split(",")):
        name, _, index = text.partition(":")
        by_topic.setdefault(told.topic(name), []).append(int(index))
    topics = [{"topic_name": name, "partitions": indexes} for name, indexes in by_topic.items()]
    names = step.options.get("groups", "g").split(",")
    return {
        "groups": [
            {"group_id": told.group(name), "topics": None if wanted == "all" else topics} for name in names
        ]
    }


def reset(step: Step, version: int, told: Told) -> Body:
    """Build an AlterShareGroupOffsets: `topics=orders:0:10,orders:1:-1`."""
    by_topic: dict[str, list[Body]] = {}
    for text in filter(None, step.options.get("topics", "orders:0:10").split(",")):
        name, index, offset = text.split(":")
        by_topic.setdefault(told.topic(name), []).append(
            {"partition_index": int(index), "start_offset": int(offset)}
        )
    return {
        "group_id": told.group(step.options.get("group", "g")),
        "topics": [{"topic_name": name, "partitions": entries} for name, entries in by_topic.items()],
    }


def clear(step: Step, version: int, told: Told) -> Body:
    """Build a DeleteShareGroupOffsets: `topics=orders,payments`."""
    return {
        "group_id": told.group(step.options.get("group", "g")),
        "topics": [{"topic_name": name} for name in _topics(step.options.get("topics", "orders"), told)],
    }


def make(step: Step, version: int, told: Told) -> Body:
    """Build a CreateTopics: `topics=~x:2`."""
    topics = [
        {
            "name": told.topic(name),
            "num_partitions": count,
            "replication_factor": _ON_ONE_BROKER,
            "assignments": [],
            "configs": [],
        }
        for name, count in _counts(step)
    ]
    return {"topics": topics, "timeout_ms": _TIMEOUT_MS, "validate_only": False}


def grow(step: Step, version: int, told: Told) -> Body:
    """Build a CreatePartitions: `topics=~x:4`."""
    topics = [
        {"name": told.topic(name), "count": count, "assignments": None} for name, count in _counts(step)
    ]
    return {"topics": topics, "timeout_ms": _TIMEOUT_MS, "validate_only": False}


def drop(step: Step, version: int, told: Told) -> Body:
    """Build a DeleteTopics: `topics=~x`."""
    topics = [{"name": name} for name in _topics(step.options["topics"], told)]
    return {"topics": topics, "timeout_ms": _TIMEOUT_MS}


def _counts(step: Step) -> list[tuple[str, int]]:
    pairs = [text.split(":") for text in step.options["topics"].split(",")]
    return [(name, int(count)) for name, count in pairs]
