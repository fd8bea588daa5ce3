"""Builds the requests of consumer groups: ConsumerGroupHeartbeat, -Describe, and a group's configs."""

from collections.abc import Iterable
from typing import Any

from tests.conformance.script import Step
from tests.conformance.told import Partition, Told

GROUP_RESOURCE = 32
_FIRST_WITH_OWN_ID = 1
_SET, _DELETE = 0, 1
_TIMEOUT_MS, _UNCHANGED = "300000", "-1"

Body = dict[str, Any]


def beat(step: Step, version: int, told: Told) -> Body:
    """ConsumerGroupHeartbeat, by default a keep-alive with the client's member epoch.

    `epoch=0` joins, `full=yes` sends everything, too. Each field can be given: `names=trips,taxis` (null, or
    nothing for none), `regex`, `owned` (see `Holding.owned`; null), `assignor`, `rack`, `instance`,
    `rebalance`.
    """
    option = step.options
    epoch = int(option.get("epoch", told.generations.get(step.client, 0)))
    full = epoch == 0 or option.get("full") == "yes"
    own_id = f"member-{told.prefix}{step.client}" if version >= _FIRST_WITH_OWN_ID else ""
    given_id = option.get("id", told.own(step.client) or own_id)
    names = option.get("names", ("" if "regex" in option else "trips") if full else "null")
    owned = option.get("owned", "none" if epoch == 0 else "now" if full else "null")
    return {
        "group_id": told.group(option.get("group", "g")),
        "member_id": told.id(given_id.replace("{prefix}", told.prefix)),
        "member_epoch": epoch,
        "instance_id": option.get("instance"),
        "rack_id": option.get("rack"),
        "rebalance_timeout_ms": int(option.get("rebalance", _TIMEOUT_MS if full else _UNCHANGED)),
        "subscribed_topic_names": None if names == "null" else [name for name in names.split(",") if name],
        "subscribed_topic_regex": option.get("regex"),
        "server_assignor": option.get("assignor"),
        "topic_partitions": None if owned == "null" else _owned(told.holding(step.client).owned(owned), told),
    }


def _owned(partitions: Iterable[Partition], told: Told) -> list[Body]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return [{"topic_id": told.topic_id(topic), "partitions": indexes} for topic, indexes in by_topic.items()]


def inspect(step: Step, version: int, told: Told) -> Body:
    """Build a ConsumerGroupDescribe."""
    return {
        "group_ids": [told.group(name) for name in step.options.get("groups", "g").split(",")],
        "include_authorized_operations": step.options.get("operations") == "yes",
    }


def configure(step: Step, version: int, told: Told) -> Body:
    """Build an IncrementalAlterConfigs of a group: `set=name:value,name:value`, `unset=name,name`."""
    pairs = [pair.split(":") for pair in step.options.get("set", "").split(",") if pair]
    configs: list[Body] = [{"name": name, "config_operation": _SET, "value": value} for name, value in pairs]
    configs += [
        {"name": name, "config_operation": _DELETE, "value": None}
        for name in step.options.get("unset", "").split(",")
        if name
    ]
    group_id = told.group(step.options.get("group", "g"))
    return {
        "resources": [{"resource_type": GROUP_RESOURCE, "resource_name": group_id, "configs": configs}],
        "validate_only": step.options.get("validate") == "yes",
    }


def configs(step: Step, version: int, told: Told) -> Body:
    """Build a DescribeConfigs of a group: `keys=name,name`, by default all."""
    keys = step.options["keys"].split(",") if "keys" in step.options else None
    group_id = told.group(step.options.get("group", "g"))
    return {
        "resources": [
            {"resource_type": GROUP_RESOURCE, "resource_name": group_id, "configuration_keys": keys}
        ]
    }
