"""Messages of the consumer protocol (KIP-848), of share groups (KIP-932) and of clients' metrics (KIP-714),
which kafka-python lacks. They are made from Kafka's definitions in `gateway/wire/schemas`, as kafka-python
makes its own.
"""

from types import new_class
from typing import Any

from kafka.protocol.api_message import ApiMessage

_SCHEMAS = "gateway.wire.schemas"


def _message(name: str, **attributes: Any) -> Any:
    """The class of the message whose definition is in the file of this name."""
    return new_class(name, (ApiMessage,), {"load_json": _SCHEMAS}, lambda body: body.update(attributes))


def _with_operations(_: type, json: Any) -> Any:
    """kafka-python's own messages have sets of operations where Kafka's definitions have int32."""
    (groups,) = (field for field in json["fields"] if field["name"] == "Groups")
    (operations,) = (field for field in groups["fields"] if field["name"] == "AuthorizedOperations")
    operations["type"] = "bitfield"
    return json


ConsumerGroupHeartbeatRequest = _message("ConsumerGroupHeartbeatRequest")
ConsumerGroupHeartbeatResponse = _message("ConsumerGroupHeartbeatResponse")
ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = _message(
    "ConsumerGroupDescribeResponse", json_patch=classmethod(_with_operations)
)
ShareGroupHeartbeatRequest = _message("ShareGroupHeartbeatRequest")
ShareGroupHeartbeatResponse = _message("ShareGroupHeartbeatResponse")
ShareGroupDescribeRequest = _message("ShareGroupDescribeRequest")
ShareGroupDescribeResponse = _message("ShareGroupDescribeResponse", json_patch=classmethod(_with_operations))
ShareFetchRequest = _message("ShareFetchRequest")
ShareFetchResponse = _message("ShareFetchResponse")
ShareAcknowledgeRequest = _message("ShareAcknowledgeRequest")
ShareAcknowledgeResponse = _message("ShareAcknowledgeResponse")
DescribeShareGroupOffsetsRequest = _message("DescribeShareGroupOffsetsRequest")
DescribeShareGroupOffsetsResponse = _message("DescribeShareGroupOffsetsResponse")
AlterShareGroupOffsetsRequest = _message("AlterShareGroupOffsetsRequest")
AlterShareGroupOffsetsResponse = _message("AlterShareGroupOffsetsResponse")
DeleteShareGroupOffsetsRequest = _message("DeleteShareGroupOffsetsRequest")
DeleteShareGroupOffsetsResponse = _message("DeleteShareGroupOffsetsResponse")
GetTelemetrySubscriptionsRequest = _message("GetTelemetrySubscriptionsRequest")
GetTelemetrySubscriptionsResponse = _message("GetTelemetrySubscriptionsResponse")
PushTelemetryRequest = _message("PushTelemetryRequest")
PushTelemetryResponse = _message("PushTelemetryResponse")
