"""Kafka's messages as bytes. kafka-python encodes them, so that the load shares no code with the gateway.

Only the messages that kafka-python lacks use the gateway's codec, which follows Kafka's definitions.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from bench.load.requests import TOPIC, Membership
from gateway.wire import codec

CLIENT_ID = "bench"
Api = tuple[int, int]
HEARTBEAT = (ApiKey.Heartbeat, 4)
COMMIT = (ApiKey.OffsetCommit, 8)
FETCH = (ApiKey.OffsetFetch, 5)
LEAVE = (ApiKey.LeaveGroup, 5)
"""Each is an `Api`: the key of an API, and a version that the gateway and the broker support."""
JOIN, SYNC = (ApiKey.JoinGroup, 9), (ApiKey.SyncGroup, 5)
OLD_JOIN, OLD_SYNC = (ApiKey.JoinGroup, 3), (ApiKey.SyncGroup, 3)
"""Versions in which a new member needs no second request for its id."""
FIND_COORDINATOR = (ApiKey.FindCoordinator, 3)
INIT_PRODUCER = (ApiKey.InitProducerId, 4)
STABLE_FETCH = (ApiKey.OffsetFetch, 7)
ADD_OFFSETS = (ApiKey.AddOffsetsToTxn, 3)
OLD_TXN_COMMIT = (ApiKey.TxnOffsetCommit, 3)
OLD_END_TXN = (ApiKey.EndTxn, 3)
"""Versions of clients before KIP-890."""
TXN_COMMIT, END_TXN = (ApiKey.TxnOffsetCommit, 5), (ApiKey.EndTxn, 5)
CONSUMER_HEARTBEAT = (ApiKey.ConsumerGroupHeartbeat, 1)
EPOCH_COMMIT = (ApiKey.OffsetCommit, 9)
EPOCH_FETCH = (ApiKey.OffsetFetch, 9)
"""Requests of a member of the consumer protocol, which commits and fetches with its epoch."""

SIZE = struct.Struct(">i")

_MESSAGES = (
    (codec.REQUESTS[68], codec.RESPONSES[68]),  # ConsumerGroupHeartbeat
    (HeartbeatRequest, HeartbeatResponse),
    (JoinGroupRequest, JoinGroupResponse),
    (LeaveGroupRequest, LeaveGroupResponse),
    (OffsetCommitRequest, OffsetCommitResponse),
    (OffsetFetchRequest, OffsetFetchResponse),
    (SyncGroupRequest, SyncGroupResponse),
    (FindCoordinatorRequest, FindCoordinatorResponse),
    (InitProducerIdRequest, InitProducerIdResponse),
    (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    (TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    (EndTxnRequest, EndTxnResponse),
)
_REQUESTS: Mapping[int, Any] = {request.API_KEY: request for request, _ in _MESSAGES}
_RESPONSES: Mapping[int, Any] = {response.API_KEY: response for _, response in _MESSAGES}
_CORRELATION_ID_AT = 8  # in a frame: after the size, and the key and the version of the API


def encode(api: Api, number: int, fields: Mapping[str, Any]) -> bytes:
    """Return a request as a frame, with `number` as its correlation id."""
    message = _message(_REQUESTS[api[0]], fields, version=api[1])
    message.with_header(correlation_id=number, client_id=CLIENT_ID)
    body = bytes(message.encode(header=True))
    return SIZE.pack(len(body)) + body


def decode(api: Api, response: bytes) -> Any:
    """Return a response without the frame's size."""
    return _RESPONSES[api[0]].decode(response, version=api[1], header=True)


class Template(NamedTuple):
    """An encoded request, to send with any correlation id.

    `head` and `tail` are the frame before and after its correlation id. `no_error` is the response after its
    correlation id, if it has no error.
    """

    api: Api
    head: bytes
    tail: bytes
    no_error: bytes

    def error(self, response: bytes) -> int:
        """Return the first error code of a response that is not `no_error`; -1 if it has none."""
        answer = decode(self.api, response)
        codes = [answer.error_code] if hasattr(answer, "error_code") else []
        for topic in getattr(answer, "topics", None) or []:
            codes += [partition.error_code for partition in topic.partitions]
        return next((code for code in codes if code), -1)


def heartbeat(member: Membership) -> Template:
    fields = {
        "group_id": member.group_id,
        "generation_id": member.generation_id,
        "member_id": member.member_id,
    }
    return _template(HEARTBEAT, fields, {"error_code": 0})


def commit(member: Membership, offset: int) -> Template:
    committed = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    fields = {
        "group_id": member.group_id,
        "generation_id_or_member_epoch": member.generation_id,
        "member_id": member.member_id,
        "topics": [{"name": TOPIC, "partitions": [{**committed, "committed_metadata": ""}]}],
    }
    stored = {"name": TOPIC, "partitions": [{"partition_index": 0, "error_code": 0}]}
    return _template(COMMIT, fields, {"topics": [stored]})


def _template(api: Api, fields: Mapping[str, Any], answer: Mapping[str, Any]) -> Template:
    frame = encode(api, 0, fields)
    response = _message(_RESPONSES[api[0]], answer, version=api[1])
    response.with_header(correlation_id=0)
    no_error = bytes(response.encode(header=True))[SIZE.size :]
    return Template(api, frame[:_CORRELATION_ID_AT], frame[_CORRELATION_ID_AT + SIZE.size :], no_error)


def _message(kind: Any, fields: Mapping[str, Any], **version: int) -> Any:
    """Return a message of this class, or a part of one, from nested mappings."""
    return kind(**{name: _value(kind.fields[name], value) for name, value in fields.items()}, **version)


def _value(field: Any, value: Any) -> Any:
    if field.is_struct_array() and value is not None:
        return [_message(field.data_class, item) for item in value]
    return value
