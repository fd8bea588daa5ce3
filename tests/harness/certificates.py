"""A certificate authority for tests, which issues PEM files, and an issuer of OAuth tokens."""

import base64
import datetime
import ipaddress
import json
import threading
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = ("127.0.0.1", "localhost")
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, as PEM files. `both` has the key (PKCS#8) and then the certificate."""

    name: str
    chain: Path
    key: Path
    both: Path


class Authority:
    """A new authority with its files in `folder`. `certificate` is its own, which clients trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / f"{name}.pem"
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(f"{name} of these tests")
        # Some verifiers ask for the usages of an authority's key.
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._builder(self._name, self._key, 10 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: Iterable[str] = LOOPBACK,
        *,
        organization: str | None = None,
        password: str | None = None,
        valid: datetime.timedelta = 5 * _DAY,
    ) -> Issued:
        """Return a certificate for a server at these hosts and for a client named `CN=<name>[,O=...]`.

        `password` encrypts its key. With a negative `valid` the certificate has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            self._builder(_subject(name, organization), key, valid)
            .add_extension(alternatives, critical=False)
            .add_extension(usages, critical=False)
            .sign(self._key, SHA256())
        )
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        chain = certificate.public_bytes(Encoding.PEM)
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        files = Issued(name, *(self._folder / f"{name}{end}.pem" for end in ("", "-key", "-both")))
        files.chain.write_bytes(chain)
        for path, content in ((files.key, key_pem), (files.both, key_pem + chain)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + valid)
        )


def _subject(name: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organization is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


LIFETIME_S = 3_600.0
_KEY_ID = "tests"


class TokenIssuer:
    """Issues RS256 tokens. `jwks` is a file with its public key (RFC 7517)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.jwks = folder / "jwks.json"
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID}
        key |= {"n": _number(numbers.n), "e": _number(numbers.e)}
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, lifetime_s: float = LIFETIME_S, **claims: Any) -> str:
        """Return a JWT for `subject`. `claims` are added to the usual ones or replace them."""
        now = int(time.time())
        body = {"sub": subject, "iat": now, "exp": now + int(lifetime_s), "scope": "kafka"} | claims
        header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        signed_part = ".".join(_part(json.dumps(part).encode()) for part in (header, body))
        signature = self._key.sign(signed_part.encode(), padding.PKCS1v15(), SHA256())
        return f"{signed_part}.{_part(signature)}"


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
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                fields = dict(urllib.parse.parse_qsl(body))
                scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
                name, _, secret = base64.b64decode(encoded).decode().partition(":")
                if scheme != "Basic" or clients.get(name) != secret:
                    return self._answer(401, {"error": "invalid_client"})
                if fields.get("grant_type") != "client_credentials":
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
