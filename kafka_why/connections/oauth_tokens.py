"""Tokens for SASL/OAUTHBEARER: from a token endpoint by client credentials, from a file, for AWS's IAM, or
unsecured.

Tokens are obtained as by Kafka's clients in Java (KIP-768, and KIP-255 for unsecured tokens). So one file of
settings works for the Kafka clients of Spark and of Python.
"""

import base64
import configparser
import hashlib
import hmac
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafka_why.connections.http_exchange import exchange
from kafka_why.connections.pem import client_context

# Tokens for Amazon MSK's IAM access control: a request to the cluster, signed by AWS's Signature Version 4.
# MSK accepts such a token by SASL/OAUTHBEARER. The secret key is never sent. It signs the token, which
# expires after 15 minutes.

IAM_LIFETIME_S = 900
_SERVICE = "kafka-cluster"
_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")


@dataclass(frozen=True, slots=True)
class IamLogin:
    """A login by IAM."""

    region: str
    profile: str | None = None  # section of the shared credentials file; None to try the environment first


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key of AWS."""

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    session: str | None = field(default=None, repr=False)  # session token, only of a temporary key


def region_of(servers: str) -> str | None:
    """Return the region of an MSK broker in `servers`, else of the environment, or None."""
    host = _MSK_HOST.search(servers)
    return host["region"] if host else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def iam_credentials(login: IamLogin) -> Credentials:
    """Return the current credentials, from the environment or the shared credentials file.

    Raises TokenError.
    """
    if login.profile is None and "AWS_ACCESS_KEY_ID" in os.environ:
        values = {name.lower(): value for name, value in os.environ.items() if name.startswith("AWS_")}
        where = "the environment"
    else:
        path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials")
        profile = login.profile or os.environ.get("AWS_PROFILE") or "default"
        values, where = _credentials_section(path, profile), f"[{profile}] of {path}"
    key_id, secret = values.get("aws_access_key_id"), values.get("aws_secret_access_key")
    if not key_id or not secret:
        raise TokenError(
            f"no login to MSK by IAM: {where} has no aws_access_key_id and aws_secret_access_key. "
            "`aws configure export-credentials` shows the credentials of a role"
        )
    return Credentials(key_id, secret, values.get("aws_session_token") or None)


def iam_token(region: str, credentials: Credentials, now_s: float) -> str:
    """Return a token that is valid for IAM_LIFETIME_S."""
    host = f"kafka.{region}.amazonaws.com"
    signed_at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    scope = f"{signed_at[:8]}/{region}/{_SERVICE}/aws4_request"
    parameters = {
        "Action": f"{_SERVICE}:Connect",
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.key_id}/{scope}",
        "X-Amz-Date": signed_at,
        "X-Amz-Expires": str(IAM_LIFETIME_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session is not None:
        parameters["X-Amz-Security-Token"] = credentials.session
    query = urlencode(sorted(parameters.items()), quote_via=quote, safe="-_.~")
    request = "\n".join(("GET", "/", query, f"host:{host}", "", "host", _EMPTY_SHA256))
    to_sign = "\n".join((_ALGORITHM, signed_at, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    url = f"https://{host}/?{query}&X-Amz-Signature={signature}&User-Agent=spark-group-coordinator"
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def _credentials_section(path: Path, name: str) -> dict[str, str]:
    """Return the values of a profile, or {} if it is missing. Raises TokenError."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
        # `read` skips a missing file.
        return dict(parser[name]) if name in parser else {}
    except (configparser.Error, OSError, ValueError):
        pass
    # Raised outside of the handler, because the caught error may quote the file.
    raise TokenError(f"no login to MSK by IAM: {path} cannot be read as a file of AWS credentials")


TIMEOUT_S = 10.0
# A token is replaced after this part of its lifetime, as by Java's sasl.login.refresh.window.factor.
REFRESH_AFTER = 0.8
# The time between two attempts to replace a token that has not expired.
RETRY_AFTER_S = 10.0
UNSECURED_LIFETIME_S = 3_600
# The assumed lifetime of a token without an expiry.
UNKNOWN_LIFETIME_S = 300
_MAX_ANSWER_BYTES = 1024 * 1024


class SentenceError(KafkaError):  # type: ignore[misc] # kafka-python ships no types
    """An error whose text is its message alone, without kafka-python's name of the error."""

    def __str__(self) -> str:
        return str(self.args[0])


class TokenError(SentenceError):
    """The error when no token can be obtained.

    Its message names the endpoint or the file, and has no secret.
    """


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A login by tokens."""

    # An http, https or file URL, or None for unsecured tokens of `subject`.
    endpoint: str | None = field(repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    trusted: str | None = field(default=None, repr=False)  # PEM; None means this machine's certificates
    subject: str | None = None
    extensions: tuple[tuple[str, str], ...] = ()  # RFC 7628

    @property
    def shown_endpoint(self) -> str:
        """The endpoint without its query, which may contain a secret."""
        return (self.endpoint or "").partition("?")[0]


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and its expiry in seconds since 1970."""

    text: str = field(repr=False)
    expires_s: float


class TokenSource:
    """The tokens of one login. All clients of this process share them.

    A token is renewed before it expires.
    """

    def __init__(self, login: TokenLogin | IamLogin) -> None:
        self.login = login
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at_s = 0.0

    def token(self) -> Token:
        """Return a token that has not expired. Raises TokenError."""
        with self._lock:
            now_s = time.time()
            if self._token is None or now_s >= self._renew_at_s:
                self._renew(now_s)
            assert self._token is not None
            return self._token

    def _renew(self, now_s: float) -> None:
        """Replace the token. If that fails, keep the old token until it expires, else raise TokenError."""
        try:
            self._token = _new_token(self.login, now_s)
        except TokenError as error:
            failed_at_s = time.time()  # the attempt may have lasted until its timeout
            if self._token is None or failed_at_s >= self._token.expires_s:
                raise
            import structlog  # executors need not have structlog

            structlog.get_logger().warning(
                "no new token: the old one is used until it expires", why=str(error)
            )
            self._renew_at_s = min(failed_at_s + RETRY_AFTER_S, self._token.expires_s)
        else:
            self._renew_at_s = now_s + (self._token.expires_s - now_s) * REFRESH_AFTER


class LoginTokens(AbstractTokenProvider):  # type: ignore[misc] # kafka-python ships no types
    """The tokens of a login, as kafka-python's token provider and as librdkafka's `oauth_cb`."""

    def __init__(self, login: TokenLogin | IamLogin) -> None:
        self._login = login

    def token(self) -> str:
        """Return a token. Raises TokenError."""
        return source_of(self._login).token().text

    def extensions(self) -> dict[str, str]:
        """Return the extensions of RFC 7628."""
        return dict(self._login.extensions) if isinstance(self._login, TokenLogin) else {}

    def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Return (token, expiry in seconds since 1970, principal, extensions). Raises TokenError."""
        token = source_of(self._login).token()
        return token.text, token.expires_s, "", self.extensions()


@cache
def source_of(login: TokenLogin | IamLogin) -> TokenSource:
    """Return the token source of a login. All callers in this process get the same."""
    return TokenSource(login)


def _new_token(login: TokenLogin | IamLogin, now_s: float) -> Token:
    """Obtain a token that has not expired. Raises TokenError."""
    if isinstance(login, IamLogin):
        return Token(iam_token(login.region, iam_credentials(login), now_s), now_s + IAM_LIFETIME_S)
    if login.endpoint is None:
        return _unsecured_token(login.subject or "", now_s)
    if login.endpoint.startswith("file:"):
        text, lifetime_s = _read_token_file(login.endpoint), None
    else:
        text, lifetime_s = _request_token(login)
    # The expiry in a JWT counts before the lifetime that the endpoint reports.
    expires_s = _expires_s(text) or now_s + (lifetime_s or UNKNOWN_LIFETIME_S)
    if expires_s <= now_s:
        raise TokenError(f"the token of {login.shown_endpoint} has expired")
    return Token(text, expires_s)


def _read_token_file(url: str) -> str:
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise TokenError(f"the token in {path} cannot be read: {reason}") from None
    if not text:
        raise TokenError(f"the token in {path} cannot be read: the file is empty")
    return text


def _request_token(login: TokenLogin) -> tuple[str, float | None]:
    """Return a token of the endpoint, and its lifetime in seconds or None. Raises TokenError."""
    assert login.endpoint is not None
    form = {"grant_type": "client_credentials"}
    if login.scope is not None:
        form["scope"] = login.scope
    credentials = base64.b64encode(f"{login.client_id}:{login.client_secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked with the settings
        login.endpoint,
        data=urllib.parse.urlencode(form).encode(),
        headers={"Authorization": f"Basic {credentials}", "Accept": "application/json"},
    )
    context = client_context(login.trusted) if login.endpoint.startswith("https:") else None
    try:
        answer = exchange(partial(_json_response, request), TIMEOUT_S, context)
        lifetime_s = answer.get("expires_in")
        return str(answer["access_token"]), None if lifetime_s is None else float(lifetime_s)
    except (OSError, HTTPException) as error:
        reason = str(getattr(error, "reason", None) or error)
    except (KeyError, ValueError, TypeError, AttributeError):
        reason = "its answer is not JSON with an access_token"
    raise TokenError(
        f"the token endpoint {login.shown_endpoint} gives client {login.client_id} no token: {reason}"
    )


def _json_response(request: urllib.request.Request, opener: urllib.request.OpenerDirector) -> Any:
    """Return the response's JSON. Raises ValueError, or OSError, which includes error statuses."""
    try:
        with opener.open(request) as answer:
            return json.loads(answer.read(_MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"it answers {error.code} {_oauth_error(error)}".rstrip()) from None


def _oauth_error(error: urllib.error.HTTPError) -> str:
    """Return the error code of RFC 6749 in a response, or "" if it has none."""
    try:
        answer: Any = json.loads(error.read(_MAX_ANSWER_BYTES))
        return str(answer["error"])[:100]
    except (OSError, KeyError, ValueError, TypeError):
        return ""


def _expires_s(token: str) -> float | None:
    """Return the expiry of a JWT, or None for any other token."""
    try:
        payload = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, ValueError, TypeError):
        return None


def _unsecured_token(subject: str, now_s: float) -> Token:
    """Return an unsecured JWS (RFC 7515, appendix A.5), which only development brokers accept."""
    expires_s = now_s + UNSECURED_LIFETIME_S
    claims = {"sub": subject, "iat": now_s, "exp": expires_s}
    return Token(f"{_jwt_part({'alg': 'none'})}.{_jwt_part(claims)}.", expires_s)


def _jwt_part(content: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
