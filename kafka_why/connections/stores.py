"""Files with certificates and keys, as PEM texts: PEM itself, and PKCS12, which Java's keytool makes."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_why.connections.pem import PemError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"


def read_store(path: Path, password: Callable[[], str | None]) -> str:
    """Return what a file has as PEM text, a private key without encryption if it comes from a PKCS12 store.

    The content of the file decides what it is, as for Java. `password` is asked for that of a PKCS12 store.
    Raises PemError and OSError.
    """
    content = path.read_bytes()
    if content.startswith(_JKS):
        raise PemError(
            f"it is a JKS store, which only Java reads: `keytool -importkeystore -srckeystore {path} "
            f"-destkeystore {path}.p12 -deststoretype PKCS12` makes a PKCS12 store of it, which can be used"
        )
    if content.startswith(_DER_SEQUENCE):
        return _pem_of_pkcs12(content, password())
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    raise PemError("it is neither a PEM file nor a PKCS12 store")


def _pem_of_pkcs12(content: bytes, password: str | None) -> str:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
    except ImportError as error:
        raise PemError(
            "it is a PKCS12 store, which the package cryptography reads: pip install 'kafka-why[pkcs12]'"
        ) from error
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError:
        store = None
    if store is None:
        raise PemError("it cannot be read as a PKCS12 store with this password")
    key = ""
    if store.key is not None:
        form, unencrypted = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = store.key.private_bytes(Encoding.PEM, form, unencrypted).decode()
    own = [] if store.cert is None else [store.cert.certificate]
    others = [other.certificate for other in store.additional_certs]
    return key + "".join(
        certificate.public_bytes(Encoding.PEM).decode() for certificate in _chained(own, others)
    )


def _chained(own: "Iterable[Certificate]", others: "Iterable[Certificate]") -> "list[Certificate]":
    """Return all certificates, after the own one its issuer, the issuer of that, and so on."""
    chain, left = list(own), list(others)
    while chain and (issuer := next((one for one in left if one.subject == chain[-1].issuer), None)):
        chain.append(issuer)
        left.remove(issuer)
    return chain + left
