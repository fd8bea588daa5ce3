"""Tokens for Amazon MSK's IAM access control: a request to the cluster, signed by AWS's Signature Version 4.

MSK takes such a token by SASL/OAUTHBEARER. The secret key stays here: the token has a signature that is made
with it, and ends after 15 minutes.
"""

import base64
import configparser
import hashlib
import hmac
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

LIFETIME_S = 900
_SERVICE = "kafka-cluster"
_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_REGION_OF_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class CredentialsError(ValueError):
    """There are no credentials of AWS. The message says where they are looked for, and has no secret."""


@dataclass(frozen=True, slots=True)
class IamLogin:
    """A login by IAM. `profile` is a section of the shared credentials file. If it is None, the environment's
    credentials come first.
    """

    region: str
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key of AWS. `session` is the token of a temporary one."""

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    session: str | None = field(default=None, repr=False)


def region_of(servers: str) -> str | None:
    """Return the region in the name of an MSK broker, or else that of the environment, or None."""
    found = _REGION_OF_HOST.search(servers)
    return found[1] if found else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def credentials_of(login: IamLogin) -> Credentials:
    """Return the credentials as they are now: from the environment's AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from the shared credentials file. Raises CredentialsError.
    """
    if login.profile is None and "AWS_ACCESS_KEY_ID" in os.environ:
        found = {name.lower(): value for name, value in os.environ.items() if name.startswith("AWS_")}
        where = "the environment"
    else:
        path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials")
        profile = login.profile or os.environ.get("AWS_PROFILE") or "default"
        found, where = _section(path, profile), f"[{profile}] of {path}"
    key_id, secret = found.get("aws_access_key_id"), found.get("aws_secret_access_key")
    if not key_id or not secret:
        raise CredentialsError(
            f"{where} has no aws_access_key_id and aws_secret_access_key. `aws configure export-credentials` "
            "shows those of a role"
        )
    return Credentials(key_id, secret, found.get("aws_session_token") or None)


def token(region: str, credentials: Credentials, now_s: float) -> str:
    """Return a token that is valid for LIFETIME_S."""
    host = f"kafka.{region}.amazonaws.com"
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    scope = f"{at[:8]}/{region}/{_SERVICE}/aws4_request"
    asked = {
        "Action": f"{_SERVICE}:Connect",
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.key_id}/{scope}",
        "X-Amz-Date": at,
        "X-Amz-Expires": str(LIFETIME_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session is not None:
        asked["X-Amz-Security-Token"] = credentials.session
    query = urlencode(sorted(asked.items()), quote_via=quote, safe="-_.~")
    request = "\n".join(("GET", "/", query, f"host:{host}", "", "host", _EMPTY_SHA256))
    to_sign = "\n".join((_ALGORITHM, at, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    url = f"https://{host}/?{query}&X-Amz-Signature={signature}&User-Agent=spark-group-coordinator"
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def _section(path: Path, name: str) -> dict[str, str]:
    """Return a section of an INI file, empty if there is no such file or section. Raises CredentialsError."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
        return dict(parser[name]) if name in parser else {}
    except (configparser.Error, OSError, ValueError):
        pass
    raise CredentialsError(f"{path} cannot be read as a file of AWS credentials")  # the cause may quote it
