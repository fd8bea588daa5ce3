"""Certificates and keys as text (PEM, RFC 7468), and their use in Python's ssl."""

import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_BLOCK = re.compile(r"-----BEGIN (?P<label>[A-Z0-9 ]+)-----.+?-----END (?P=label)-----", re.DOTALL)
_CERTIFICATE = "CERTIFICATE"
_PKCS8_LABELS = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")


class PemError(ValueError):
    """The error of an unusable PEM text. Its message does not quote the text."""


def certificates(text: str) -> str:
    """Return the certificates in a PEM text, in order. Raises PemError if it has none."""
    blocks = [block[0] for block in _BLOCK.finditer(text) if block["label"] == _CERTIFICATE]
    if not blocks:
        raise PemError(f"it has no certificate as PEM{_hint_if_cut(text)}")
    return "\n".join(blocks) + "\n"


def private_key(text: str, password: str | None = None) -> str:
    """Return the private key in a PEM text as PKCS#8, because Kafka's clients in Java need that.

    A key in another form, such as an older RSA key of OpenSSL, is converted, and decrypted with `password` if
    it is encrypted. Raises PemError.
    """
    blocks = [block for block in _BLOCK.finditer(text) if block["label"].endswith("PRIVATE KEY")]
    if not blocks:
        raise PemError(f"it has no private key as PEM{_hint_if_cut(text)}")
    if len(blocks) > 1:
        raise PemError("it has more than one private key")
    block = blocks[0]
    return f"{block[0]}\n" if block["label"] in _PKCS8_LABELS else _as_pkcs8(block, password)


def is_encrypted(key: str) -> bool:
    """Return True if a private key (PKCS#8) needs a password."""
    return "-----BEGIN ENCRYPTED" in key


def _as_pkcs8(block: re.Match[str], password: str | None) -> str:
    """Convert a key, and decrypt it if it is encrypted. Raises PemError."""
    key_password = password.encode() if password and "ENCRYPTED" in block[0] else None
    # The package cryptography is optional. Executors do not need it, because they get their keys as PKCS#8.
    with suppress(ImportError):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        with suppress(TypeError, ValueError, UnsupportedAlgorithm):
            key = serialization.load_pem_private_key(block[0].encode(), key_password)
            return key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode()
    raise PemError(
        f"its key is a {block['label']}, not PKCS#8 (BEGIN PRIVATE KEY), and it cannot be converted here. "
        "`openssl pkcs8 -topk8 -nocrypt` converts it"
    )


def client_context(
    trusted: str | None,
    chain: str | None = None,
    key: str | None = None,
    key_password: str | None = None,
    *,
    checks_host: bool = True,
) -> ssl.SSLContext:
    """Return a TLS context for clients. Raises PemError.

    `trusted` None means this machine's certificates. `chain` and `key` are a client's certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = checks_host
    try:
        if trusted is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        raise PemError(f"the trusted certificates cannot be used: {_reason(error)}") from None
    if chain is not None and key is not None:
        try:
            with _as_file(key + chain) as path:
                # Without a password, OpenSSL would ask for it on the terminal.
                context.load_cert_chain(path, password=key_password or "")
        except (ssl.SSLError, OSError) as error:
            raise PemError(
                f"the certificate and its key cannot be used: {_reason(error)}"
                + ("" if key_password is None else " (is the key's password right?)")
            ) from None
    return context


def _hint_if_cut(text: str) -> str:
    """Return a hint if the text has only the beginning of a block, or ""."""
    if "-----BEGIN" not in text or "-----END" in text:
        return ""
    return ": it has no END. In a file of settings, each line of PEM but the last ends with \\n\\"


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a file with this text: in memory on Linux, so that a key is not on a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        try:
            with open(descriptor, "w", closefd=False) as file:
                file.write(text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with NamedTemporaryFile("w", suffix=".pem") as temporary:
            temporary.write(text)
            temporary.flush()
            yield temporary.name


# The first bytes of stores: JKS and JCEKS, or any DER, such as PKCS12.
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"


def read_store(path: Path, password: Callable[[], str | None]) -> str:
    """Return the content of a PEM or PKCS12 store as PEM text. Raises PemError or OSError.

    The content shows the type, as in Java. `password` returns the password of a PKCS12 store. Its private key
    is returned unencrypted.
    """
    content = path.read_bytes()
    if content.startswith(_JKS):
        raise PemError(
            f"it is a JKS store, which only Java reads: `keytool -importkeystore -srckeystore {path} "
            f"-destkeystore {path}.p12 -deststoretype PKCS12` makes a PKCS12 store of it, which can be used"
        )
    if content.startswith(_DER_SEQUENCE):
        return _pem_of_pkcs12(content, password())
    with suppress(UnicodeDecodeError):
        return content.decode("utf-8-sig")
    raise PemError("it is neither a PEM file nor a PKCS12 store")


def _pem_of_pkcs12(content: bytes, password: str | None) -> str:
    """Return the unencrypted key of a store, its certificate, and its other certificates. Raises PemError."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
    except ImportError as error:
        raise PemError(
            "it is a PKCS12 store, which the package cryptography reads: pip install cryptography"
        ) from error
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError:
        store = None
    if store is None:
        raise PemError("it cannot be read as a PKCS12 store with this password")
    key = ""
    if store.key is not None:
        pkcs8, unencrypted = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = store.key.private_bytes(Encoding.PEM, pkcs8, unencrypted).decode()
    own = [] if store.cert is None else [store.cert.certificate]  # the certificate of the key
    others = [other.certificate for other in store.additional_certs]
    return key + "".join(
        certificate.public_bytes(Encoding.PEM).decode() for certificate in _in_chain_order(own, others)
    )


def _in_chain_order(own: "Iterable[Certificate]", others: "Iterable[Certificate]") -> "list[Certificate]":
    """Return all certificates: `own`, the chain of its issuers, then the rest."""
    chain, rest = list(own), list(others)
    while chain:
        issuers = [certificate for certificate in rest if certificate.subject == chain[-1].issuer]
        if not issuers:
            break
        chain.append(issuers[0])
        rest.remove(issuers[0])
    return chain + rest
