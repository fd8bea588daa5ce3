"""The `ssl.` settings of a client, and their parsing.

The settings have the names of Kafka's clients in Java, or those of librdkafka where the names differ.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kafka_why.connections import pem
from kafka_why.connections.pem import PemError
from kafka_why.connections.used_settings import JAVA_CLASS, ClientConfigError, UsedSettings

HOST_CHECK = "ssl.endpoint.identification.algorithm"
TRUSTED = "ssl.truststore.certificates"
CHAIN = "ssl.keystore.certificate.chain"
ENGINE = "ssl.engine.factory.class"
VERIFICATION = "enable.ssl.certificate.verification"

SETTINGS = frozenset(
    {
        HOST_CHECK,
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.password",
        TRUSTED,
        "ssl.ca.location",
        "ssl.ca.pem",
    }
    | {
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        CHAIN,
        "ssl.keystore.key",
        "ssl.key.password",
    }
    | {"ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem"}
)
# The settings whose values are paths of files.
_FILE_SETTINGS = frozenset(
    {
        "ssl.truststore.location",
        "ssl.ca.location",
        "ssl.keystore.location",
        "ssl.certificate.location",
        "ssl.key.location",
    }
)
# The settings with a client's chain and with its key. Those at the same position belong together.
_CHAIN_SETTINGS, _KEY_SETTINGS = (
    (CHAIN, "ssl.certificate.location", "ssl.certificate.pem"),
    ("ssl.keystore.key", "ssl.key.location", "ssl.key.pem"),
)
# A value of ssl.ca.location: librdkafka then searches for the machine's authorities.
_PROBE = "probe"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The parsed TLS settings, as PEM texts."""

    trusted: str | None  # None means this machine's certificates
    chain: str | None  # the client's certificate and its issuers; None without a client certificate
    key: str | None  # None without a client certificate
    key_password: str | None  # None if the key is not encrypted
    checks_host: bool  # the certificate has to be of the server's host


def read_tls(settings: UsedSettings, where: str = "") -> TlsSettings:
    """Parse the `ssl.` settings, and read the files that they name. Raises ClientConfigError.

    Errors have `where` before the name of a setting.
    """
    _check_supported(settings)
    host_check = settings.text(HOST_CHECK)
    if host_check is not None and host_check.lower() not in ("https", "", "none"):
        raise ClientConfigError(
            f"{HOST_CHECK}: {settings.shown(HOST_CHECK)} is not supported. Use https or, to accept a "
            "certificate of any host, none or an empty value"
        )
    trusted_name, trusted = read_trusted(
        settings, ("ssl.truststore.location", TRUSTED, "ssl.ca.location", "ssl.ca.pem"), where
    )
    key_name, chain, key = _client_certificate(settings)
    key_password: str | None = None
    if key is not None:
        password = settings.get("ssl.key.password") if "ENCRYPTED" in key else None
        key = _read_pem(key_name, key, lambda text: pem.private_key(text, password))
        key_password = password if pem.is_encrypted(key) else None
    checks_host = host_check is None or host_check.lower() == "https"
    tls = TlsSettings(trusted, chain, key, key_password, checks_host=checks_host)
    try:
        context_of(tls)  # only to report unusable certificates now
    except PemError as error:
        names = trusted_name if chain is None else f"{trusted_name}, {key_name}"
        raise ClientConfigError(f"{names}: {error}") from None
    return tls


def read_trusted(settings: UsedSettings, names: tuple[str, ...], where: str = "") -> tuple[str, str | None]:
    """Return the first of `names` that is set, and its trusted certificates.

    The certificates are None if this machine's are used. Raises ClientConfigError.
    """
    settings.text("ssl.truststore.type")  # counts as used, although the content shows the type
    name, value = settings.first(*names)
    shown_name = where + name
    if value is None or (name == "ssl.ca.location" and value == _PROBE):
        return shown_name, None
    text = _pem_text(settings, name, value, "ssl.truststore.password", where)
    return shown_name, _read_pem(shown_name, text, pem.certificates)


def context_of(tls: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context for a client's connections. Raises PemError."""
    return pem.client_context(tls.trusted, tls.chain, tls.key, tls.key_password, checks_host=tls.checks_host)


def _check_supported(settings: UsedSettings) -> None:
    """Refuse settings that not all kinds of clients support."""
    engine = settings.get(ENGINE)
    if engine is not None and not engine.startswith("org.apache.kafka."):
        raise ClientConfigError(
            f"{ENGINE}: {settings.shown(ENGINE)} {JAVA_CLASS}. Name the "
            f"certificates by ssl.truststore.location and ssl.keystore.location"
        )
    if (settings.get(VERIFICATION) or "true").lower() == "false":
        raise ClientConfigError(
            f"{VERIFICATION} is false, and Spark's Kafka clients cannot connect without verification. Name "
            f"the brokers' authority by ssl.ca.location or ssl.truststore.location"
        )


def _client_certificate(settings: UsedSettings) -> tuple[str, str | None, str | None]:
    """Return the name of the key's setting, the certificate chain, and the text with the key.

    The last two are None without a client certificate.
    """
    settings.text("ssl.keystore.type")  # counts as used, although the content shows the type
    store = settings.get("ssl.keystore.location")
    if store is not None:
        text = _pem_text(settings, "ssl.keystore.location", store, "ssl.keystore.password")
        return "ssl.keystore.location", _read_pem("ssl.keystore.location", text, pem.certificates), text
    (chain_name, chain), (key_name, key) = settings.first(*_CHAIN_SETTINGS), settings.first(*_KEY_SETTINGS)
    if chain is None and key is None:
        return key_name, None, None
    if key is None:
        key_name = _KEY_SETTINGS[_CHAIN_SETTINGS.index(chain_name)]
    if chain is None:
        chain_name = _CHAIN_SETTINGS[_KEY_SETTINGS.index(key_name)]
    if chain is None or key is None:
        raise ClientConfigError(f"{chain_name} and {key_name} belong together")
    chain = _read_pem(chain_name, _pem_text(settings, chain_name, chain), pem.certificates)
    return key_name, chain, _pem_text(settings, key_name, key)


def _pem_text(
    settings: UsedSettings, name: str, value: str, password_name: str | None = None, where: str = ""
) -> str:
    """Return the PEM text of a setting: its value, or the content of the file that it names.

    `password_name` is the setting with a store's password, which counts as used only if the store needs it.
    Errors have `where` before the name of a setting.
    """
    if name not in _FILE_SETTINGS:
        return value
    if "-----BEGIN" in value:
        raise ClientConfigError(f"{where}{name} is the path of a file, and its value is the text of one")

    def password() -> str | None:
        return None if password_name is None else settings.get(password_name)

    try:
        return pem.read_store(Path(value), password)
    except (OSError, PemError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    hint = f" ({where}{password_name})" if password_name and reason.endswith("password") else ""
    raise ClientConfigError(f"{where}{name}: {settings.shown(name)} cannot be read: {reason}{hint}")


def _read_pem(name: str, text: str, read: Callable[[str], str]) -> str:
    """Return what `read` returns for the PEM text of setting `name`. Raises ClientConfigError."""
    try:
        return read(text)
    except PemError as error:
        raise ClientConfigError(f"{name}: {error}") from None
