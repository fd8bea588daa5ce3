"""SaslHandshake (key 17) and SaslAuthenticate (key 36), where the gateway itself asks for names. Elsewhere
they pass to the broker, as all else does.
"""

from typing import Any

from gateway.apis.context import Call
from gateway.security.authentication import PLAIN
from gateway.wire.codec import Fields
from state.errors import ErrorCode


async def serve_handshake(call: Call, request: Any) -> Fields:
    """Agree on the mechanism."""
    return {"error_code": call.session.handshake(request.mechanism), "mechanisms": [PLAIN]}


async def serve_authenticate(call: Call, request: Any) -> Fields:
    """Check name and password."""
    error = call.session.authenticate(request.auth_bytes)
    refused = error is not ErrorCode.NONE
    return {
        "error_code": error,
        "error_message": "Authentication failed" if refused else None,
        "auth_bytes": b"",
    }
