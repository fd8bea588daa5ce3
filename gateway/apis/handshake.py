"""The first requests of a connection: ApiVersions (key 18), SaslHandshake (key 17), SaslAuthenticate (key
36).
"""

import re
from collections.abc import Mapping
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import RequestContext
from gateway.upstream.share_groups import SHARE_VERSION
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.messages import ErrorCode

_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_IDS = 5
_NO_NODE_ID = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_ERROR_CODE = slice(4, 6)  # after the correlation id, in all versions

GROUP_VERSION, STREAMS_VERSION = "group.version", "streams.version"
_LEVEL = 1  # of both features
# Earlier clients reject features whose lowest version is 0 (KAFKA-17011).
_FIRST_WITH_LEVEL_0 = 4
# Features that announce group protocols, because clients do not reach the broker's coordinator.
HIDDEN_FEATURES = frozenset({GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION})


def restrict(
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
    kept = [api for api in response.api_keys if api.api_key not in hidden and api.api_key not in own]
    for api in kept:
        mine = bounds.get(api.api_key, range(api.min_version, api.max_version + 1))
        api.min_version = max(api.min_version, mine.start)
        api.max_version = min(api.max_version, mine.stop - 1)
    kept = [api for api in kept if api.min_version <= api.max_version]
    kept += [
        response.ApiVersion(api_key=key, min_version=mine.start, max_version=mine.stop - 1)
        for key, mine in own.items()
    ]
    response.api_keys = sorted(kept, key=lambda api: int(api.api_key))
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


def is_valid(request: Any, version: int) -> bool:
    """Return True if an ApiVersions is valid (ApiVersionsRequest.isValid).

    The client's software has a name and a version, and the request has both of the server's ids or neither. A
    broker compares these ids with its own after the authentication (KIP-1242).
    """
    if version < _FIRST_WITH_SOFTWARE:
        return True
    if version >= _FIRST_WITH_IDS and (request.cluster_id is None) != (request.node_id == _NO_NODE_ID):
        return False
    return bool(
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    )


def is_refusal(response: bytes) -> bool:
    """Return True if the broker's response has an error and no versions. It passes unchanged, because its
    encoding depends on the error.
    """
    return response[_ERROR_CODE] != b"\0\0"


def _visible(features: list[Any] | None, hidden: frozenset[str]) -> list[Any]:
    return [feature for feature in features or [] if feature.name not in hidden]


def unsupported(versions: range) -> Fields:
    """Return the response to an ApiVersions of an unknown version. It has version 0, and only this API
    (KIP-511).
    """
    only = {"api_key": ApiKey.ApiVersions, "min_version": versions.start, "max_version": versions.stop - 1}
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [only]}


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


# Version 0 of the handshake is unframed.
HANDSHAKE_API = Api(key=ApiKey.SaslHandshake, serve=serve_handshake, versions=range(1, 2))
AUTHENTICATE_API = Api(key=ApiKey.SaslAuthenticate, serve=serve_authenticate)
