"""The APIs of a connection rather than of a group: versions, authentication, and the client's metrics
(KIP-714).
"""

import re
from collections.abc import Mapping
from time import monotonic
from typing import Any
from uuid import uuid4

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, may_read_group
from gateway.apis.context import RequestContext
from gateway.telemetry.otlp import ACCEPTED, CompressionType, PayloadError, read_metrics
from gateway.telemetry.service import (
    MAX_BYTES,
    REQUESTED_METRICS,
    ClientTelemetry,
    is_valid_id,
    kafka_uuid,
    record_of,
)
from gateway.upstream.share_groups import SHARE_VERSION
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.messages import RECORD_VERSION, ErrorCode
from kafka_why.contract.telemetry import MemberTelemetry

_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_IDS = 5
_NO_NODE_ID = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_ERROR_CODE = slice(4, 6)  # after the correlation id, in all versions

GROUP_VERSION, STREAMS_VERSION = "group.version", "streams.version"
_LEVEL = 1  # of both features
# Clients of earlier versions reject features whose lowest level is 0 (KAFKA-17011).
_FIRST_WITH_LEVEL_0 = 4
# A broker's features that announce group protocols are hidden, because clients do not reach its coordinator.
HIDDEN_FEATURES = frozenset({GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION})


def restrict_versions(
    response: Any,
    own: Mapping[int, range],
    bounds: Mapping[int, range],
    hidden: frozenset[int],
    hidden_features: frozenset[str] = HIDDEN_FEATURES,
) -> None:
    """Restrict the versions in a broker's response to ApiVersions.

    The gateway's `own` versions replace the broker's, other APIs are limited to `bounds`. The APIs in
    `hidden` and the features in `hidden_features` are removed.
    """
    passed = [api for api in response.api_keys if api.api_key not in hidden and api.api_key not in own]
    for api in passed:
        allowed = bounds.get(api.api_key, range(api.min_version, api.max_version + 1))
        api.min_version = max(api.min_version, allowed.start)
        api.max_version = min(api.max_version, allowed.stop - 1)
    offered = [api for api in passed if api.min_version <= api.max_version]
    offered += [
        response.ApiVersion(api_key=key, min_version=versions.start, max_version=versions.stop - 1)
        for key, versions in own.items()
    ]
    response.api_keys = sorted(offered, key=lambda api: int(api.api_key))
    response.supported_features = _visible(response.supported_features, hidden_features)
    response.finalized_features = _visible(response.finalized_features, hidden_features)


def add_feature(response: Any, version: int, name: str) -> None:
    """Add a feature that announces a group protocol (KIP-848, KIP-1071) to a response of this version."""
    if version >= _FIRST_WITH_LEVEL_0:
        response.supported_features = [
            *response.supported_features,
            response.SupportedFeatureKey(name=name, min_version=0, max_version=_LEVEL),
        ]
    response.finalized_features = [
        *response.finalized_features,
        response.FinalizedFeatureKey(name=name, max_version_level=_LEVEL, min_version_level=_LEVEL),
    ]


def is_valid_api_versions(request: Any, version: int) -> bool:
    """Return True if an ApiVersions is valid (ApiVersionsRequest.isValid).

    A valid request names the client's software and its version, and has both of the server's ids or neither.
    A broker compares these ids with its own after the authentication (KIP-1242).
    """
    if version < _FIRST_WITH_SOFTWARE:
        return True
    has_cluster_id, has_node_id = request.cluster_id is not None, request.node_id != _NO_NODE_ID
    if version >= _FIRST_WITH_IDS and has_cluster_id != has_node_id:
        return False
    return bool(
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    )


def has_no_versions(response: bytes) -> bool:
    """Return True if the broker's response has an error and no versions. It passes unchanged, because its
    encoding depends on the error.
    """
    return response[_ERROR_CODE] != b"\0\0"


def _visible(features: list[Any] | None, hidden: frozenset[str]) -> list[Any]:
    return [feature for feature in features or [] if feature.name not in hidden]


def unsupported_version_fields(versions: range) -> Fields:
    """Return the response to an ApiVersions of an unknown version (KIP-511). It has only the versions of
    ApiVersions itself. The caller encodes it in version 0.
    """
    api = {"api_key": ApiKey.ApiVersions, "min_version": versions.start, "max_version": versions.stop - 1}
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [api]}


# SaslHandshake (key 17) and SaslAuthenticate (key 36), unless the broker authenticates the clients. Without
# authentication they are illegal, as at a broker's listener without SASL.


async def serve_handshake(context: RequestContext, request: Any) -> Fields:
    """Negotiate the SASL mechanism."""
    if not context.session.is_sasl_required:
        return {"error_code": GatewayError.ILLEGAL_SASL_STATE, "mechanisms": []}
    error = context.session.handshake(request.mechanism)
    return {"error_code": error, "mechanisms": context.session.mechanisms}


async def serve_authenticate(context: RequestContext, request: Any) -> Fields:
    """Evaluate the client's next SASL message."""
    if not context.session.is_sasl_required:
        return {"error_code": GatewayError.ILLEGAL_SASL_STATE, "error_message": None, "auth_bytes": b""}
    reply = context.session.authenticate(request.auth_bytes)
    return {
        "error_code": reply.error,
        "error_message": reply.message,
        "auth_bytes": reply.auth_bytes,
        "session_lifetime_ms": reply.lifetime_ms,
    }


# After version 0 of the handshake, clients send SASL messages without Kafka's request header.
HANDSHAKE_API = Api(key=ApiKey.SaslHandshake, serve=serve_handshake, versions=range(1, 2))
AUTHENTICATE_API = Api(key=ApiKey.SaslAuthenticate, serve=serve_authenticate)


# GetTelemetrySubscriptions (key 71) and PushTelemetry (key 72): clients push their own metrics (KIP-714).


_COMPRESSION_TYPES = frozenset(CompressionType)


async def get_subscriptions(context: RequestContext, request: Any) -> Fields:
    """Return the subscription of this client, with a new id for the client if it has none."""
    telemetry = _telemetry(context)
    error = context.caches.metric_pushes.accept_get(monotonic(), telemetry.interval_s)
    if error:
        return {"error_code": error}
    client_instance_id = request.client_instance_id or uuid4()
    return {
        "error_code": ErrorCode.NONE,
        "client_instance_id": client_instance_id,
        "subscription_id": telemetry.subscription_id(client_instance_id),
        "accepted_compression_types": list(ACCEPTED),
        "push_interval_ms": telemetry.interval_ms,
        "telemetry_max_bytes": MAX_BYTES,
        "delta_temporality": True,
        "requested_metrics": REQUESTED_METRICS,
    }


async def push(context: RequestContext, request: Any) -> Fields:
    """Accept the metrics that a client pushes."""
    if not is_valid_id(request.client_instance_id):
        return {"error_code": ErrorCode.INVALID_REQUEST}
    error = context.caches.metric_pushes.accept_push(
        monotonic(), _telemetry(context).interval_s, is_terminating=request.terminating
    )
    if not error:
        error = _process(context, request)
    return {"error_code": context.caches.metric_pushes.record_error(error)}


def _process(context: RequestContext, request: Any) -> int:
    """Process the content of a push that is not too early. Return the push's error, or 0."""
    telemetry = _telemetry(context)
    if request.subscription_id != telemetry.subscription_id(request.client_instance_id):
        return GatewayError.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in _COMPRESSION_TYPES:
        return GatewayError.UNSUPPORTED_COMPRESSION_TYPE
    if len(request.metrics) > MAX_BYTES:
        return GatewayError.TELEMETRY_TOO_LARGE
    if not request.metrics:
        return ErrorCode.NONE
    push_record = MemberTelemetry(
        version=RECORD_VERSION,
        group_id="",  # `record_of` reads these three fields in `resources`
        member_id="",
        metrics={},
        client_instance_id=kafka_uuid(request.client_instance_id),
        client_id=context.header.client_id or "",
        client_host=context.client_host,
        principal=context.principal,
        push_interval_ms=telemetry.interval_ms,
        terminating=request.terminating,
    )
    compression = CompressionType(request.compression_type)
    try:
        resources = read_metrics(telemetry.decompressor.decompress(request.metrics, compression))
    except PayloadError:
        return GatewayError.INVALID_RECORD
    record = record_of(resources, push_record)
    if record is not None and may_read_group(context, record.group_id):
        telemetry.write(record)
    return ErrorCode.NONE


def _telemetry(context: RequestContext) -> ClientTelemetry:
    telemetry = context.services.telemetry
    assert telemetry is not None, "without it the requests pass to the brokers"
    return telemetry


GET_SUBSCRIPTIONS_API = Api(
    key=ApiKey.GetTelemetrySubscriptions,
    serve=get_subscriptions,
    asks_coordinator=False,
    is_passed=lambda services: services.telemetry is None,
)
PUSH_TELEMETRY_API = Api(
    key=ApiKey.PushTelemetry,
    serve=push,
    asks_coordinator=False,
    is_passed=lambda services: services.telemetry is None,
)
