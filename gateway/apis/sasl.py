"""SaslHandshake (key 17) and SaslAuthenticate (key 36), unless the broker authenticates the clients. Where
nobody does, they are out of turn, as at a broker's listener without SASL.
"""

from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import RequestContext
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError


async def serve_handshake(context: RequestContext, request: Any) -> Fields:
    """Agree on the mechanism."""
    if not context.session.is_asked:
        return {"error_code": GatewayError.ILLEGAL_SASL_STATE, "mechanisms": []}
    error = context.session.handshake(request.mechanism)
    return {"error_code": error, "mechanisms": context.session.mechanisms}


async def serve_authenticate(context: RequestContext, request: Any) -> Fields:
    """Take the client's next message."""
    if not context.session.is_asked:
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
