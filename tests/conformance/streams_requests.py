"""Builds the requests of streams groups: StreamsGroupHeartbeat and StreamsGroupDescribe."""

from typing import Any

from msgspec import to_builtins

from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from tests.conformance import share_requests
from tests.conformance.script import Step
from tests.conformance.told import ROLES, Told
from tests.harness.cluster import Cluster
from tests.harness.member_log import LogClient
from tests.harness.streams_requests import Application

_FIELDS = StreamsGroupHeartbeat.__struct_fields__
_OF_KAFKA = ("group_id", *_FIELDS[_FIELDS.index("member_id") : _FIELDS.index("topics")])
_INTERNAL = {"replication_factor": 1, "topic_configs": [{"key": "cleanup.policy", "value": "compact"}]}

Body = dict[str, Any]


def stream(step: Step, version: int, told: Told) -> Body:
    """StreamsGroupHeartbeat, by default a keep-alive with the client's member epoch.

    The options are those of `tests.harness.streams_requests`, each with `=`: `A=0,1:2 own=`. `epoch=mine-1`
    is the one before the client's own, and `own=now` are the tasks that it was assigned. A topic `~x` is of
    this case alone.
    """
    client, option = step.client, step.options
    epoch = share_requests.epoch_of(option.get("epoch", "mine"), told.generations.get(client, 0))
    given = {"epE": str(told.endpoints.get(client, -1)), "facts": "none"}
    if epoch == 0:
        given |= {"process": f"process-{client}", "timeout": "300s", "topology": "0: orders"}
    if option.get("own") == "now":
        for letter, role in zip("ASW", ROLES, strict=True):
            tasks = told.tasks.get(client, {}).get(role, {})
            given[letter] = " ".join(f"{id_}:{','.join(map(str, of))}" for id_, of in tasks.items())
    given |= option
    member_id = told.id(option.get("id", f"member-{told.prefix}{client}")).replace("{prefix}", told.prefix)
    given |= {"id": member_id, "epoch": str(epoch)}
    if "topology" in given:
        given["topology"] = given["topology"].replace("~", told.prefix)
    common = LogClient(0, told.group(option.get("group", "g"))).common()
    request = Application().heartbeat(common, given, {}, Cluster())
    body = {name: to_builtins(getattr(request, name)) for name in _OF_KAFKA}
    for one in (body["topology"] or {}).get("subtopologies", ()):
        for topic in (*one["state_changelog_topics"], *one["repartition_source_topics"]):
            topic.update(_INTERNAL)
    return body


def tasks(step: Step, version: int, told: Told) -> Body:
    """Build a StreamsGroupDescribe."""
    is_described = step.options.get("described") == "yes"
    return share_requests.sharers(step, version, told) | {"include_topology_description": is_described}
