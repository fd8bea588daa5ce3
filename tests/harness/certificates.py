"""A certificate authority for tests. What it issues are PEM files, as Kafka's clients and brokers read."""

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
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
        """Return a certificate for a server at these hosts and for a client of this name,
        `CN=<name>[,O=...]`.


        `password` encrypts its key. A negative `valid` makes one that has expired.
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
