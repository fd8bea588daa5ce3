"""Sends a request to the receiver, and interprets its answer.

Addresses and tokens are read for each request, so that a file can be replaced while notify runs. No error
text or log line contains them.
"""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message as Headers
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from kafka_why.connections.address import is_loopback
from kafka_why.connections.http_exchange import exchange
from kafka_why.numbers import is_whole_number
from kafka_why.wording import visible

TIMEOUT_S = 10.0
"""The timeout of a whole request, from the connect to the answer."""
MAX_ANSWER_BYTES = 1_000
MAX_SHOWN_CHARS = 200
MAX_SECRET_BYTES = 64 * 1024
NOT_PRIVATE = "a token is sent by https only, or to this machine"
_REFUSALS = (400, 413, 422)
"""The status codes that a retry would get, too: the body is invalid or too large."""


class SecretUnreadable(Exception):
    """The error when the address or the token cannot be read from its file. The message names the file."""


class Verdict(Enum):
    """The receiver's reaction to a request."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # the receiver will never accept this body
    FAILED = "failed"  # another attempt may succeed


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    verdict: Verdict
    reason: str = ""
    retry_after_s: float | None = None  # pause that the receiver asks for


class Receiver:
    """A web server that takes messages.

    `url` and `token` return its address and the bearer token (or None), or raise SecretUnreadable. `context`
    verifies the server's certificate. Proxies are those of the environment (`https_proxy`, `no_proxy`).
    Redirections are not followed, because they would send the messages to another server.
    """

    def __init__(
        self,
        url: Callable[[], str],
        token: Callable[[], str | None],
        context: ssl.SSLContext,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._url = url
        self._token = token
        self._context = context
        self._timeout_s = timeout_s

    def post(self, body: bytes) -> Answer:
        """Send a JSON body. Errors of the network and the receiver are returned in the answer, not raised."""
        try:
            url, token = self._url(), self._token()
        except SecretUnreadable as error:
            return Answer(Verdict.FAILED, str(error))
        if token is not None and not is_private(url):
            return Answer(Verdict.FAILED, NOT_PRIVATE)
        headers = {"Content-Type": "application/json", "User-Agent": "group-coordinator"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        address = urlsplit(url)
        secrets = [url, address.path, address.query, token or ""]
        try:
            request = urllib.request.Request(url, body, headers)  # noqa: S310 - `checked_url` has its scheme
            return exchange(
                partial(_answer, request, secrets), self._timeout_s, self._context, (_NotRedirected(),)
            )
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            return Answer(Verdict.FAILED, _hide_secrets(secrets, str(reason) or type(error).__name__))


def _answer(
    request: urllib.request.Request, secrets: list[str], opener: urllib.request.OpenerDirector
) -> Answer:
    """Send the request and return its answer. Raises OSError or HTTPException without an answer."""
    try:
        with opener.open(request):
            return Answer(Verdict.ACCEPTED)
    except urllib.error.HTTPError as error:
        with error:
            return _answer_of(error, secrets)


class _NotRedirected(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirection, so that its status code becomes an HTTPError."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Headers, newurl: str
    ) -> None:
        return None


def checked_url(text: str) -> str:
    """Return the address of a receiver. Raises ValueError, whose message does not quote the address."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("it has characters that an address cannot have")
    if not _is_address(text):
        raise ValueError("it is not an address such as https://HOST/PATH")
    if "@" in urlsplit(text).netloc:
        raise ValueError("it has a user name or a password: use a file with a bearer token")
    return text


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def read_first_line(path: Path) -> str:
    """Return the first line of a file with a secret. Raises SecretUnreadable."""
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_SECRET_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SecretUnreadable(f"{path} cannot be read: {reason}") from None
    if not lines or not lines[0].strip():
        raise SecretUnreadable(f"{path} has nothing in its first line")
    return lines[0].strip()


def read_url(path: Path) -> str:
    """Return the address of a receiver in the first line of a file. Raises SecretUnreadable."""
    try:
        return checked_url(read_first_line(path))
    except ValueError as error:
        raise SecretUnreadable(f"the first line of {path} cannot be used: {error}") from None


def is_private(url: str) -> bool:
    """Return True if nobody on the way to this address can read what is sent."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def _answer_of(error: urllib.error.HTTPError, secrets: list[str]) -> Answer:
    """Return the answer for an error status, with the beginning of the response's body as its reason."""
    try:
        body = error.read(MAX_ANSWER_BYTES).decode(errors="replace").strip()
    except (OSError, HTTPException):
        body = ""
    reason = _hide_secrets(secrets, f"it answers {error.code} {body}".rstrip())
    if error.code in _REFUSALS:
        return Answer(Verdict.REFUSED, reason)
    return Answer(Verdict.FAILED, reason, _retry_after_s(error.headers.get("Retry-After")))


def _retry_after_s(text: str | None) -> float | None:
    """Return the seconds of a header `Retry-After` (a number or a date), or None without a valid one."""
    if text is None or len(text) > 64:
        return None
    if is_whole_number(text):
        return float(text)
    try:
        return max((parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None


def _hide_secrets(secrets: list[str], text: str) -> str:
    """Return a text for logs: short, on one line, and with `***` instead of each secret."""
    for secret in secrets:
        if len(secret) > 1:  # the path "/" is no secret
            text = text.replace(secret, "***")
    return visible(text)[:MAX_SHOWN_CHARS]
