"""Builds the requests of streams groups: StreamsGroupHeartbeat and StreamsGroupDescribe."""

from typing import Any

from tests.conformance.script import Step
from tests.conformance.share_requests import epoch_of
from tests.conformance.told import ROLES, Told

_TIMEOUT_MS, _UNCHANGED = "300000", "-1"
_NULL, _NOW, _NONE = "null", "now", "none"

Body = dict[str, Any]


def stream(step: Step, version: int, told: Told) -> Body:
    """StreamsGroupHeartbeat, by default a keep-alive with the client's member epoch.

    `epoch=0` joins with everything; `epoch=mine-1` is the one before the client's own.
    `topology=orders,>~r/<~r,!~s` are subtopologies: sources, `>` sinks, `<` repartition sources and `!`
    changelogs, each with `:3` for a number of partitions; `=orders+~r` are copartitioned. `top` is the
    topology's epoch. `owned` is `null`, `now`, `none`, or active tasks such as `0:1+2`; `standby`, `warmup`
    likewise. Others are `process`, `endpoint=h:1`, `tags=k:v`, `offsets=0:1:50`, `ends`, `instance`, `rack`,
    `rebalance`, `seen` (the endpoint epoch), `id` and `shutdown=yes`.
    """
    option = step.options
    epoch = epoch_of(option.get("epoch", "mine"), told.generations.get(step.client, 0))
    is_join = epoch == 0
    owned = option.get("owned", _NONE if is_join else _NULL)
    topology = option.get("topology", "orders" if is_join else _NULL)
    host, _, port = option.get("endpoint", "").partition(":")
    own_id = f"member-{told.prefix}{step.client}"
    return {
        "group_id": told.group(option.get("group", "g")),
        "member_id": told.id(option.get("id", own_id)).replace("{prefix}", told.prefix),
        "member_epoch": epoch,
        "endpoint_information_epoch": int(option.get("seen", told.endpoints.get(step.client, -1))),
        "instance_id": option.get("instance"),
        "rack_id": option.get("rack"),
        "rebalance_timeout_ms": int(option.get("rebalance", _TIMEOUT_MS if is_join else _UNCHANGED)),
        "topology": None if topology == _NULL else _topology(topology, int(option.get("top", "0")), told),
        **{f"{role}_tasks": _owned(role, option.get(role, owned), step, told) for role in ROLES},
        "process_id": option.get("process", f"process-{step.client}" if is_join else None),
        "user_endpoint": {"host": host, "port": int(port)} if port else None,
        "client_tags": _tags(option["tags"]) if "tags" in option else [] if is_join else None,
        "task_offsets": _offsets(option.get("offsets")),
        "task_end_offsets": _offsets(option.get("ends")),
        "shutdown_application": option.get("shutdown") == "yes",
    }


def _owned(role: str, text: str, step: Step, told: Told) -> list[Body] | None:
    """Return the tasks of a role. A list of tasks without a role is of active ones."""
    if text == _NULL:
        return None
    if text == _NONE or (text != _NOW and role not in step.options and role != ROLES[0]):
        return []
    if text == _NOW:
        tasks = told.tasks.get(step.client, {}).get(role, {})
        return [{"subtopology_id": id_, "partitions": numbers} for id_, numbers in tasks.items()]
    pairs = [entry.split(":") for entry in text.split(",")]
    return [{"subtopology_id": id_, "partitions": [*map(int, numbers.split("+"))]} for id_, numbers in pairs]


def _topology(text: str, epoch: int, told: Told) -> Body:
    parts = filter(None, text.split("/"))
    return {
        "epoch": epoch,
        "subtopologies": [_subtopology(str(number), part, told) for number, part in enumerate(parts)],
    }


def _subtopology(id_: str, text: str, told: Told) -> Body:
    entries = text.split(",")
    marked = {mark: [entry[1:] for entry in entries if entry.startswith(mark)] for mark in "><!="}
    sources = [told.topic(entry) for entry in entries if entry[:1] not in marked]
    repartitioned = [_topic_info(entry, told) for entry in marked["<"]]
    read = [topic["name"] for topic in repartitioned]
    groups = [[told.topic(name) for name in names.split("+")] for names in marked["="]]
    return {
        "subtopology_id": id_,
        "source_topics": sources,
        "source_topic_regex": [],
        "state_changelog_topics": [_topic_info(entry, told) for entry in marked["!"]],
        "repartition_sink_topics": [told.topic(name) for name in marked[">"]],
        "repartition_source_topics": repartitioned,
        "copartition_groups": [
            {
                "source_topics": [sources.index(name) for name in names if name in sources],
                "source_topic_regex": [],
                "repartition_source_topics": [read.index(name) for name in names if name in read],
            }
            for names in groups
        ],
    }


def _topic_info(text: str, told: Told) -> Body:
    name, _, count = text.partition(":")
    return {
        "name": told.topic(name),
        "partitions": int(count or 0),
        "replication_factor": 1,
        "topic_configs": [{"key": "cleanup.policy", "value": "compact"}],
    }


def _tags(text: str) -> list[Body]:
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    return [{"key": key, "value": value} for key, value in pairs]


def _offsets(text: str | None) -> list[Body] | None:
    if text is None:
        return None
    entries = [entry.split(":") for entry in text.split(",") if entry]
    return [
        {"subtopology_id": id_, "partition": int(partition), "offset": int(offset)}
        for id_, partition, offset in entries
    ]


def tasks(step: Step, version: int, told: Told) -> Body:
    """StreamsGroupDescribe."""
    return {
        "group_ids": [told.group(name) for name in step.options.get("groups", "g").split(",")],
        "include_authorized_operations": step.options.get("operations") == "yes",
        "include_topology_description": step.options.get("described") == "yes",
    }
