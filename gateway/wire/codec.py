"""Encoding and decoding of messages. Their classes are built from Kafka's own schemas: kafka-python's
classes, NEWER_MESSAGES, and those of `kafka_why.wire.group_descriptions`.

Decoded messages have Kafka's field names in snake_case as attributes. Messages to encode may also be nested
mappings with these names. Fields that the version lacks are left out. Missing fields get their default.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache, partial
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
from kafka_why.wire.schema_fields import Schema
from kafka_why.wire.schema_reader import UNLIMITED, Pause, SchemaReader

# Messages, versions of messages and keys of APIs that Kafka 4.4 has and kafka-python lacks. A newer version
# is kafka-python's own message with a patch.


# Messages of the consumer protocol (KIP-848), of share groups (KIP-932), of streams groups (KIP-1071) and of
# clients' metrics (KIP-714), which kafka-python lacks. They are built from Kafka's definitions in
# `gateway/wire/schemas`, as kafka-python builds its own.
_MISSING_MESSAGES = (
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
    """Return a subclass of the same name, with the patched definition. kafka-python's clients continue to use
    the original.
    """

    def json_patch(_: type, json: Any) -> Any:
        patch(json)
        return json

    patched = new_class(
        message.__name__, (message,), exec_body=lambda body: body.update(json_patch=classmethod(json_patch))
    )
    if not message.is_request():
        # A new class registers itself, and kafka-python's clients would decode with it. So the original is
        # registered again, by a weak reference as in kafka-python.
        ResponseClassRegistry.register_response_class(weakref.proxy(message))
    return patched


def _add_versions(json: Any, up_to: int, fields: Sequence[Schema] = ()) -> None:
    """Patch a message: it has the versions up to `up_to`, and `fields` at its end."""
    json["validVersions"] = f"0-{up_to}"
    json["fields"] += fields


def _field(json: Any, name: str) -> Any:
    """Return the only field of this name in a message's definition."""
    (field,) = (field for field in json["fields"] if field["name"] == name)
    return field


def _add_topic_ids(json: Any) -> None:
    """Patch TxnOffsetCommit: it has topic names up to version 5, topic ids from version 6 on (KIP-1319)."""
    json["validVersions"] = "0-6"
    topics = _field(json, "Topics")
    _field(topics, "Name")["versions"] = "0-5"
    topics["fields"].insert(1, {"name": "TopicId", "type": "uuid", "versions": "6+"})


def _add_error_messages(json: Any) -> None:
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
        for name in _MISSING_MESSAGES
        for side in ("Request", "Response")
    ),
    _patched_class(
        metadata.ApiVersionsRequest, partial(_add_versions, up_to=5, fields=(_CLUSTER_ID, _NODE_ID))
    ),
    _patched_class(metadata.ApiVersionsResponse, partial(_add_versions, up_to=5)),
    _patched_class(admin.DeleteGroupsRequest, partial(_add_versions, up_to=3)),
    _patched_class(admin.DeleteGroupsResponse, _add_error_messages),
    _patched_class(producer.TxnOffsetCommitRequest, _add_topic_ids),
    _patched_class(producer.TxnOffsetCommitResponse, _add_topic_ids),
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
_ONLY_ERROR_CODE = {"error_code"}  # the fields of a response that has nothing else
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
        ApiKey.FindCoordinator,
        ApiKey.ConsumerGroupHeartbeat,
        ApiKey.ShareGroupHeartbeat,
        ApiKey.StreamsGroupHeartbeat,
    }
)


def decode_request(header: RequestHeader, message: bytes, pause: Pause | None = None) -> Any:
    """Decode the body of a request that the gateway answers. Raises ProtocolError.

    Unknown tagged fields are ignored, as by a broker. `pause` is as in `SchemaReader.read`.
    """
    return _reader(REQUESTS[header.api_key], header.api_version, unknown_tags=True).read(
        message, _body_at(header, message), pause
    )


def decode_passed(header: RequestHeader, message: bytes, pause: Pause | None = None) -> Any:
    """Decode the body of a request that passes to a broker. `pause` is as in `SchemaReader.read`.

    Raises ProtocolError, also for an unknown tagged field. The broker may know the field, so it could do
    something that the gateway has not checked.
    """
    at = _body_at(header, message)
    if at > header.client_id_end + 1:  # the number 0 of tagged fields takes one byte
        raise ProtocolError("a request header with tags")
    return _reader(REQUESTS[header.api_key], header.api_version, unknown_tags=False).read(message, at, pause)


def encode_response(header: RequestHeader, response: Any) -> bytes:
    """Encode the response to this request, with its header and without the frame's size."""
    api = header.api_key, header.api_version
    if not isinstance(response, Mapping):
        body = bytes(response.encode())
    elif response.keys() == _ONLY_ERROR_CODE:
        body = _encode_error(*api, response["error_code"])
    elif header.api_key in _FREQUENT:
        body = _encoder(RESPONSES[header.api_key], header.api_version).encode(response)
    else:
        body = _encode_body(*api, response)
    return _INT32.pack(header.correlation_id) + _response_tags(*api) + body


def encode_parts(header: RequestHeader, response: Fields) -> tuple[bytes, ...]:
    """Encode a response in parts, so that several responses can share the entries of a list without a copy.

    If the last field is an `EncodedList`, its entries are one of the parts.
    """
    encoded_lists = ((name, value) for name, value in response.items() if isinstance(value, EncodedList))
    name, last_list = next(encoded_lists, ("", None))
    if last_list is None:
        return (encode_response(header, response),)
    without_entries = encode_response(header, {**response, name: EncodedList(last_list.count, entries=b"")})
    is_flexible = RESPONSES[header.api_key].flexible_version_q(header.api_version)
    # In a flexible version the number 0 of tagged fields follows the list, in one byte.
    entries_at = len(without_entries) - (1 if is_flexible else 0)
    return without_entries[:entries_at], last_list.entries, without_entries[entries_at:]


def entries_encoder(header: RequestHeader, name: str) -> EntriesEncoder:
    """Return the encoder of the entries of a list, the last field of the response to this request."""
    return EntriesEncoder(_encoder(RESPONSES[header.api_key], header.api_version).message, name)


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
    return _reader(RESPONSES[api_key], api_version, unknown_tags=True).read(response, at, pause, UNLIMITED)


def with_body(header: RequestHeader, message: bytes, request: Any) -> bytes:
    """Return the message with the body `request`, which has the same version. The header does not change."""
    at = _body_at(header, message)
    request.with_header()  # kafka-python cannot encode a decoded DeleteTopics without a header
    return message[:at] + bytes(request.encode())


def extend(message: Any, name: str, entries: list[Fields]) -> None:
    """Add entries to a list of a decoded message."""
    getattr(message, name).extend(_value(type(message).fields[name], entries))


def versions(api_key: int) -> range:
    """Return the versions of an API that can be decoded and encoded."""
    first, last = REQUESTS[api_key].valid_versions
    return range(first, last + 1)


def _body_at(header: RequestHeader, message: bytes) -> int:
    """Return the position of the body of a request. Raises ProtocolError."""
    at = header.client_id_end
    is_flexible = REQUESTS[header.api_key].flexible_version_q(header.api_version)
    return skip_tagged_fields(message, at) if is_flexible else at


@cache
def _reader(message_type: Any, api_version: int, *, unknown_tags: bool) -> SchemaReader:
    return SchemaReader(message_type, api_version, unknown_tags=unknown_tags)


@cache
def _encoder(message_type: Any, api_version: int) -> SchemaEncoder:
    return SchemaEncoder(message_type.json, api_version)


def _encode_body(api_key: int, api_version: int, response: Fields) -> bytes:
    return bytes(_build_message(RESPONSES[api_key], response, version=api_version).encode())


@cache
def _encode_error(api_key: int, api_version: int, error_code: int) -> bytes:
    # Cached, because Heartbeat, the most frequent request, has only a few different responses.
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


def _build_message(data_class: Any, fields: Fields, **version: int) -> Any:
    """Build a message, or a structure in one, from nested mappings. Only messages have a `version`."""
    values = {name: _value(data_class.fields[name], value) for name, value in fields.items()}
    return data_class(**values, **version)


def _value(field: Any, value: Any) -> Any:
    """Return the value of a field, with mappings replaced by objects of kafka-python's classes."""
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
