"""Messages, versions of messages and keys of APIs that Kafka 4.4 has and kafka-python lacks. A newer version
is kafka-python's own message with a patch.
"""

import weakref
from collections.abc import Callable
from enum import IntEnum
from types import new_class
from typing import Any

from kafka.protocol import admin, metadata, producer
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage

from kafka_why.wire.group_descriptions import message_class
from kafka_why.wire.primitives import Schema

# Messages of the consumer protocol (KIP-848), of share groups (KIP-932) and of clients' metrics (KIP-714),
# which kafka-python lacks. They are built from Kafka's definitions in `gateway/wire/schemas`, as kafka-python
# builds its own.
_MESSAGES = (
    "ConsumerGroupHeartbeat",
    "ShareGroupHeartbeat",
    "ShareFetch",
    "ShareAcknowledge",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
)


Patch = Callable[[Any], None]


class NewerApiKey(IntEnum):
    """Keys of APIs by Kafka's names, as in kafka-python's `ApiKey`."""

    StreamsGroupTopologyDescriptionUpdate = 93
    UnregisterController = 94


def _newer(message: type[ApiMessage], patch: Patch) -> Any:
    """Return a class of the same name with the patched definition. kafka-python's clients keep theirs."""

    def json_patch(_: type, json: Any) -> Any:
        patch(json)
        return json

    body: dict[str, Any] = {"json_patch": classmethod(json_patch)}
    newer = new_class(message.__name__, (message,), {}, lambda attributes: attributes.update(body))
    if not message.is_request():
        # A response's definition also registers itself as the one that clients decode.
        ResponseClassRegistry.register_response_class(weakref.proxy(message))
    return newer


def _up_to(version: int, *fields: Schema) -> Patch:
    """Return a patch that adds versions up to this one, and these fields at the end of the message."""

    def patch(json: Any) -> None:
        json["validVersions"] = f"0-{version}"
        json["fields"] += fields

    return patch


def _field(json: Any, name: str) -> Any:
    (found,) = (field for field in json["fields"] if field["name"] == name)
    return found


def _topics_by_id(json: Any) -> None:
    """Patch TxnOffsetCommit: it has topic names up to version 5, topic ids from version 6 on (KIP-1319)."""
    json["validVersions"] = "0-6"
    topics = _field(json, "Topics")
    _field(topics, "Name")["versions"] = "0-5"
    topics["fields"].insert(1, {"name": "TopicId", "type": "uuid", "versions": "6+"})


def _with_messages(json: Any) -> None:
    """Patch DeleteGroups: each error has a text from version 3 on."""
    json["validVersions"] = "0-3"
    text = {"name": "ErrorMessage", "type": "string", "versions": "3+", "nullableVersions": "3+"}
    _field(json, "Results")["fields"].append({**text, "default": "null"})


# The cluster and the node that the client expects (KIP-1242).
_CLUSTER_ID = {
    "name": "ClusterId",
    "type": "string",
    "versions": "5+",
    "nullableVersions": "5+",
    "default": "null",
}
_NODE_ID = {"name": "NodeId", "type": "int32", "versions": "5+", "default": "-1"}

NEWER_MESSAGES: tuple[Any, ...] = (
    *(
        message_class(f"{name}{side}", "gateway.wire.schemas")
        for name in _MESSAGES
        for side in ("Request", "Response")
    ),
    _newer(metadata.ApiVersionsRequest, _up_to(5, _CLUSTER_ID, _NODE_ID)),
    _newer(metadata.ApiVersionsResponse, _up_to(5)),
    _newer(admin.DeleteGroupsRequest, _up_to(3)),
    _newer(admin.DeleteGroupsResponse, _with_messages),
    _newer(producer.TxnOffsetCommitRequest, _topics_by_id),
    _newer(producer.TxnOffsetCommitResponse, _topics_by_id),
)
