"""The access control of the page, and the browser's restrictions for it.

The page shows strangers' strings to privileged people. So no script but its own may run in it, and no other
site may read it.
"""

import binascii
import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MAX_CREDENTIAL_CHARS = 4_096
"""Maximum length of an Authorization header. A longer one is refused unread."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_READ_METHODS = ("GET", "HEAD")
_Message = MutableMapping[str, Any]


class Access:
    """The access rules of the page.

    `has_password` returns True for a user's name and right password. `token` is a bearer token. If both are
    None, nobody has to authenticate, but the Host header has to be one of `hosts`.
    """

    def __init__(
        self,
        hosts: Collection[str] = (),
        has_password: Callable[[str, bytes], bool] | None = None,
        token: str | None = None,
    ) -> None:
        self._hosts = frozenset(name.lower() for name in hosts)
        self._has_password = has_password
        self._token_digest = None if token is None else sha256(token.encode()).digest()

    def refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        """Return the response to a forbidden request, or None if it is allowed."""
        if method not in _READ_METHODS:
            return PlainTextResponse("The page is read only.\n", 405, {"Allow": ", ".join(_READ_METHODS)})
        if _is_cross_site(headers):
            return PlainTextResponse("Another site may not read the page.\n", 403)
        if self._has_password is not None or self._token_digest is not None:
            return None if self._is_authenticated(headers.get("authorization", "")) else _unauthorized()
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("The page does not answer to this host name.\n", 421)
        return None

    def _is_authenticated(self, authorization: str) -> bool:
        if len(authorization) > MAX_CREDENTIAL_CHARS:
            return False
        scheme, _, credential = authorization.partition(" ")
        match scheme.lower():
            case "bearer" if self._token_digest is not None:
                return hmac.compare_digest(sha256(credential.strip().encode()).digest(), self._token_digest)
            case "basic" if self._has_password is not None:
                return self._has_basic_password(credential.strip())
        return False

    def _has_basic_password(self, credential: str) -> bool:
        try:
            name, colon, password = b64decode(credential, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
        return bool(colon) and self._has_password is not None and self._has_password(name, password.encode())


class Guard:
    """ASGI middleware that enforces `Access`, and adds HEADERS to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._access.refusal(scope["method"], Headers(scope=scope))
        app: Callable[[Scope, Receive, Send], Awaitable[None]] = self._app if refusal is None else refusal
        await app(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    """Return a `send` that adds HEADERS to the response."""
    our_headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def send_with_headers(message: _Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *our_headers]
        await send(message)

    return send_with_headers


def _is_cross_site(headers: Headers) -> bool:
    """Return True if a browser reports a request of another site, except for a link (`navigate`)."""
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
    return site not in ("none", "same-origin") and mode != "navigate"


def _unauthorized() -> PlainTextResponse:
    return PlainTextResponse(
        "The page requires a user and a password, or a token.\n",
        401,
        {"WWW-Authenticate": 'Basic realm="group-coordinator", charset="UTF-8"'},
    )
