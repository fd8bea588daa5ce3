"""Requests that describe consumer, share and streams groups, which kafka-python lacks. Their classes are
generated from Kafka's own definitions in `kafka_why/wire/schemas`, as kafka-python generates its own.
"""

from types import new_class
from typing import Any

from kafka.protocol.api_message import ApiMessage

_SCHEMAS = "kafka_why.wire.schemas"


def message_class(name: str, package: str = _SCHEMAS, **attributes: Any) -> Any:
    """Return the class of the message that the package's file `name` defines."""
    return new_class(name, (ApiMessage,), {"load_json": package}, lambda body: body.update(attributes))


def _with_operations(_: type, json: Any) -> Any:
    """Patch the type of the authorized operations, so that they are decoded to a set.

    Kafka's schemas have an int32, kafka-python's own messages a set.
    """
    (groups,) = (field for field in json["fields"] if field["name"] == "Groups")
    (operations,) = (field for field in groups["fields"] if field["name"] == "AuthorizedOperations")
    operations["type"] = "bitfield"
    return json


_patched: Any = classmethod(_with_operations)
ConsumerGroupDescribeRequest = message_class("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = message_class("ConsumerGroupDescribeResponse", json_patch=_patched)
ShareGroupDescribeRequest = message_class("ShareGroupDescribeRequest")
ShareGroupDescribeResponse = message_class("ShareGroupDescribeResponse", json_patch=_patched)
StreamsGroupDescribeRequest = message_class("StreamsGroupDescribeRequest")
StreamsGroupDescribeResponse = message_class("StreamsGroupDescribeResponse", json_patch=_patched)
