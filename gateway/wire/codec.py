"""Encoding and decoding of messages. Their classes are built from Kafka's own schemas: kafka-python's
classes, NEWER_MESSAGES, and those of `kafka_why.wire.group_descriptions`.

Decoded messages have Kafka's field names in snake_case as attributes. Messages to encode may also be nested
mappings with these names. Fields that the version lacks are left out. Missing fields get their default.
"""

import weakref
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from struct import Struct
from types import new_class
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_key import ApiKey
from kafka.protocol.api_message import ApiMessage

from gateway.wire.framing import ProtocolError, RequestHeader, skip_tagged_fields
from gateway.wire.schema_encoder import EncodedList, EntriesEncoder, SchemaEncoder
from kafka_why.wire import group_descriptions
from kafka_why.wire.group_descriptions import message_class
from kafka_why.wire.primitives import Schema
from kafka_why.wire.schema_reader import UNLIMITED, Pause, SchemaReader

# Messages, versions of messages and keys of APIs that Kafka 4.4 has and kafka-python lacks. A newer version
# is kafka-python's own message with a patch.


# Messages of the consumer protocol (KIP-848), of share groups (KIP-932), of streams groups (KIP-1071) and of
# clients' metrics (KIP-714), which kafka-python lacks. They are built from Kafka's definitions in
# `gateway/wire/schemas`, as kafka-python builds its own.
_OLDER_MESSAGES = (
    "ConsumerGroupHeartbeat",
    "ShareGroupHeartbeat",
    "StreamsGroupHeartbeat",
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


def _patched_class(message: type[ApiMessage], patch: Patch) -> Any:
    """Return a class of the same name with the patched definition. kafka-python's clients keep the
    original.
    """

    def json_patch(_: type, json: Any) -> Any:
        patch(json)
        return json

    body: dict[str, Any] = {"json_patch": classmethod(json_patch)}
    newer = new_class(message.__name__, (message,), {}, lambda attributes: attributes.update(body))
    if not message.is_request():
        # The new class has registered itself for the decoding by kafka-python's clients.
        ResponseClassRegistry.register_response_class(weakref.proxy(message))
    return newer


def _up_to(version: int, *fields: Schema) -> Patch:
    """Return a patch that adds the versions up to `version`, and `fields` at the end of the message."""

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


def _with_error_messages(json: Any) -> None:
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
        for name in _OLDER_MESSAGES
        for side in ("Request", "Response")
    ),
    _patched_class(metadata.ApiVersionsRequest, _up_to(5, _CLUSTER_ID, _NODE_ID)),
    _patched_class(metadata.ApiVersionsResponse, _up_to(5)),
    _patched_class(admin.DeleteGroupsRequest, _up_to(3)),
    _patched_class(admin.DeleteGroupsResponse, _with_error_messages),
    _patched_class(producer.TxnOffsetCommitRequest, _topics_by_id),
    _patched_class(producer.TxnOffsetCommitResponse, _topics_by_id),
)


_MESSAGES: list[Any] = [
    message
    for module in (admin, consumer, metadata, producer, sasl, group_descriptions)
    for message in vars(module).values()
    if isinstance(message, type) and issubclass(message, ApiMessage) and message is not ApiMessage
]
_MESSAGES += NEWER_MESSAGES
REQUESTS: Mapping[int, Any] = {message.API_KEY: message for message in _MESSAGES if message.is_request()}
RESPONSES: Mapping[int, Any] = {message.API_KEY: message for message in _MESSAGES if not message.is_request()}

Fields = Mapping[str, Any]

_INT32 = Struct(">i")
_REQUEST_HEADER = Struct(">hhih")  # and the client id
_CORRELATION_ID_BYTES = 4
_ERROR_ALONE = {"error_code"}
# The APIs whose responses are frequent or may be long.
_FREQUENT = frozenset(
    {
        ApiKey.OffsetCommit,
        ApiKey.OffsetFetch,
        ApiKey.LeaveGroup,
        ApiKey.ListGroups,
        ApiKey.ListConfigResources,
        ApiKey.TxnOffsetCommit,
        ApiKey.OffsetDelete,
        ApiKey.ConsumerGroupHeartbeat,
        ApiKey.ShareGroupHeartbeat,
        ApiKey.StreamsGroupHeartbeat,
    }
)


def decode_request(header: RequestHeader, message: bytes, pause: Pause | None = None) -> Any:
    """Decode the body of a request that the gateway answers. Raises ProtocolError.

    Unknown tagged fields are ignored, as by a broker. `pause` is as in `SchemaReader.read`.
    """
    return _reader(REQUESTS[header.api_key], header.api_version, True).read(
        message, _body_at(header, message), pause
    )


def decode_passed(header: RequestHeader, message: bytes, pause: Pause | None = None) -> Any:
    """Decode the body of a request that passes to a broker. `pause` is as in `SchemaReader.read`.

    Raises ProtocolError, also for an unknown tagged field, which the broker may know.
    """
    at = _body_at(header, message)
    if at > header.client_id_end + 1:
        raise ProtocolError("a request header with tags")
    return _reader(REQUESTS[header.api_key], header.api_version, False).read(message, at, pause)


def encode_response(header: RequestHeader, response: Any) -> bytes:
    """Encode the response to this request, with its header and without the frame's size."""
    api = header.api_key, header.api_version
    if not isinstance(response, Mapping):
        body = bytes(response.encode())
    elif response.keys() == _ERROR_ALONE:
        body = _error_alone(*api, response["error_code"])
    elif header.api_key in _FREQUENT:
        body = _encoder(RESPONSES[header.api_key], header.api_version).encode(response)
    else:
        body = _encode_body(*api, response)
    return _INT32.pack(header.correlation_id) + _response_tags(*api) + body


def encode_parts(header: RequestHeader, response: Fields) -> tuple[bytes, ...]:
    """Encode a response in parts.

    The entries of an `EncodedList`, which is the last field, are one of the parts, so many responses can
    share the entries without a copy.
    """
    lists = ((name, value) for name, value in response.items() if isinstance(value, EncodedList))
    name, last = next(lists, ("", None))
    if last is None:
        return (encode_response(header, response),)
    others = encode_response(header, {**response, name: EncodedList(last.count, b"")})
    is_flexible = RESPONSES[header.api_key].flexible_version_q(header.api_version)
    end = len(others) - (1 if is_flexible else 0)  # no tagged fields follow the list
    return others[:end], last.entries, others[end:]


def entries_encoder(header: RequestHeader, name: str) -> EntriesEncoder:
    """Return the encoder of the entries of a list, the last field of the response to this request."""
    return EntriesEncoder(RESPONSES[header.api_key].json, header.api_version, name)


def decode_response(api_key: int, api_version: int, response: bytes) -> Any:
    """Decode a broker's response with its header. Brokers are trusted to send well-formed responses."""
    return RESPONSES[api_key].decode(response, version=api_version, header=True)


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str, body: Fields
) -> bytes:
    """Encode a request of the gateway, with its header and without the frame's size."""
    request = _build_message(REQUESTS[api_key], body, version=api_version)
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True))


def encode_frequent(
    api_key: int, api_version: int, correlation_id: int, client_id: str, body: Fields
) -> bytes:
    """Encode a request like `encode_request`, in a tenth of the time, if `SchemaEncoder` can encode it."""
    name = client_id.encode()
    header = _REQUEST_HEADER.pack(api_key, api_version, correlation_id, len(name)) + name
    tags = b"\0" if REQUESTS[api_key].flexible_version_q(api_version) else b""
    return header + tags + _encoder(REQUESTS[api_key], api_version).encode(body)


def decode_frequent(api_key: int, api_version: int, response: bytes, pause: Pause | None = None) -> Any:
    """Decode a response like `decode_response`, in a third of the time. Raises ProtocolError.

    The message has only the fields of this version. `pause` is as in `SchemaReader.read`.
    """
    at = _CORRELATION_ID_BYTES
    if RESPONSES[api_key].flexible_version_q(api_version):
        at = skip_tagged_fields(response, at)
    return _reader(RESPONSES[api_key], api_version, True).read(response, at, pause, UNLIMITED)


def with_body(header: RequestHeader, message: bytes, request: Any) -> bytes:
    """Return the message with the body `request`, which has the same version. The header does not change."""
    at = _body_at(header, message)
    request.with_header()  # a decoded DeleteTopics does not encode without a header
    return message[:at] + bytes(request.encode())


def extend(message: Any, name: str, entries: list[Fields]) -> None:
    """Add entries to a list of a decoded message."""
    getattr(message, name).extend(_value(type(message).fields[name], entries))


def versions(api_key: int) -> range:
    """Return the versions of an API that can be decoded and encoded."""
    first, last = REQUESTS[api_key].valid_versions
    return range(first, last + 1)


def _body_at(header: RequestHeader, message: bytes) -> int:
    at = header.client_id_end
    is_flexible = REQUESTS[header.api_key].flexible_version_q(header.api_version)
    return skip_tagged_fields(message, at) if is_flexible else at


@cache
def _reader(kind: Any, api_version: int, unknown_tags: bool) -> SchemaReader:
    return SchemaReader(kind, api_version, unknown_tags=unknown_tags)


@cache
def _encoder(kind: Any, api_version: int) -> SchemaEncoder:
    return SchemaEncoder(kind.json, api_version)


def _encode_body(api_key: int, api_version: int, response: Fields) -> bytes:
    return bytes(_build_message(RESPONSES[api_key], response, version=api_version).encode())


@cache
def _error_alone(api_key: int, api_version: int, error_code: int) -> bytes:
    # The result is cached: Heartbeat, the most frequent request, has only a few different responses.
    return _encode_body(api_key, api_version, {"error_code": error_code})


@cache
def _response_tags(api_key: int, api_version: int) -> bytes:
    """Return the rest of a response header after the correlation id: an empty set of tagged fields, or
    nothing.
    """
    response = RESPONSES[api_key](version=api_version)
    response.with_header()
    header = response.encode_header(flexible=response.flexible_version_q(api_version))
    return bytes(header[_CORRELATION_ID_BYTES:])


def _build_message(kind: Any, fields: Fields, **version: int) -> Any:
    """Build a message of this kind, or a part of one, from nested mappings."""
    return kind(**{name: _value(kind.fields[name], value) for name, value in fields.items()}, **version)


def _value(field: Any, value: Any) -> Any:
    if value is None:
        return None
    if field.is_struct_array():
        return [_build_message(field.data_class, item) for item in value]
    return _build_message(field.data_class, value) if field.is_struct() else value


# Kafka's error codes that only the gateway returns. Source: org.apache.kafka.common.protocol.Errors.


class GatewayError(IntEnum):
    """Errors of the gateway itself. The coordinator's are in `kafka_why.contract.messages.ErrorCode`."""

    UNKNOWN_TOPIC_OR_PARTITION = 3
    COORDINATOR_LOAD_IN_PROGRESS = 14
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    SASL_AUTHENTICATION_FAILED = 58
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    SHARE_SESSION_NOT_FOUND = 122
