"""Tokens of an identity provider for tests: signed JWTs, the keys to check them with, a token endpoint."""

import base64
import json
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

LIFETIME_S = 3_600.0
_KEY_ID = "tests"


class TokenIssuer:
    """Issues RS256 tokens. `jwks` is a file with its public key as RFC 7517 has it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.jwks = folder / "jwks.json"
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID}
        key |= {"n": _number(numbers.n), "e": _number(numbers.e)}
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, lifetime_s: float = LIFETIME_S, **claims: Any) -> str:
        """Return a JWT for `subject`. `claims` are further ones, or replace those that it has."""
        now = int(time.time())
        body = {"sub": subject, "iat": now, "exp": now + int(lifetime_s), "scope": "kafka"} | claims
        header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        signed = ".".join(_part(json.dumps(part).encode()) for part in (header, body))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256())
        return f"{signed}.{_part(signature)}"


class TokenEndpoint:
    """A token endpoint for client credentials (RFC 6749, 4.4) on loopback. `clients` are secrets by id.

    `served` counts the tokens. A token's subject is the client's id.
    """

    def __init__(
        self, issuer: TokenIssuer, clients: Mapping[str, str], *, lifetime_s: float = LIFETIME_S
    ) -> None:
        self.served = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Answer a request for a token."""
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked = dict(urllib.parse.parse_qsl(form))
                scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
                name, _, secret = base64.b64decode(encoded).decode().partition(":")
                if scheme != "Basic" or clients.get(name) != secret:
                    return self._answer(401, {"error": "invalid_client"})
                if asked.get("grant_type") != "client_credentials":
                    return self._answer(400, {"error": "unsupported_grant_type"})
                endpoint.served += 1
                token = issuer.token(name, lifetime_s)
                self._answer(
                    200, {"access_token": token, "token_type": "Bearer", "expires_in": int(lifetime_s)}
                )

            def _answer(self, status: int, body: Mapping[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Log nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _number(number: int) -> str:
    return _part(number.to_bytes((number.bit_length() + 7) // 8))


def _part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
