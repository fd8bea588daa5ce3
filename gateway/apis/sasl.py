"""SaslHandshake (key 17) and SaslAuthenticate (key 36), unless the broker authenticates the clients. Where
nobody does, they are out of turn, as at a broker's listener without SASL.
"""

from typing import Any

from gateway.apis.context import RequestContext
from gateway.security.authentication import PLAIN
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from state.errors import ErrorCode


async def serve_handshake(context: RequestContext, request: Any) -> Fields:
    """Agree on the mechanism."""
    if not context.session.is_asked:
        return {"error_code": GatewayError.ILLEGAL_SASL_STATE, "mechanisms": []}
    return {"error_code": context.session.handshake(request.mechanism), "mechanisms": [PLAIN]}


async def serve_authenticate(context: RequestContext, request: Any) -> Fields:
    """Check the user's name and password."""
    if not context.session.is_asked:
        return {"error_code": GatewayError.ILLEGAL_SASL_STATE, "error_message": None, "auth_bytes": b""}
    error = context.session.authenticate(request.auth_bytes)
    refused = error is not ErrorCode.NONE
    return {
        "error_code": error,
        "error_message": "Authentication failed" if refused else None,
        "auth_bytes": b"",
    }
