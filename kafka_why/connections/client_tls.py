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
_FILES = frozenset(
    {
        "ssl.truststore.location",
        "ssl.ca.location",
        "ssl.keystore.location",
        "ssl.certificate.location",
        "ssl.key.location",
    }
)
_CHAINS, _KEYS = (
    (CHAIN, "ssl.certificate.location", "ssl.certificate.pem"),
    ("ssl.keystore.key", "ssl.key.location", "ssl.key.pem"),
)
# A value of ssl.ca.location: librdkafka then searches for the machine's authorities.
_PROBE = "probe"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The parsed TLS settings, as PEM texts."""

    trusted: str | None  # None: this machine's certificates
    chain: str | None
    key: str | None
    key_password: str | None  # None if the key is not encrypted
    checks_host: bool


def read_tls(settings: UsedSettings, where: str = "") -> TlsSettings:
    """Parse the `ssl.` settings, and read the files that they name. Raises ClientConfigError.

    Errors have `where` before the name of a setting.
    """
    _check_supported(settings)
    checks = settings.text(HOST_CHECK)
    if checks is not None and checks.lower() not in ("https", "", "none"):
        raise ClientConfigError(
            f"{HOST_CHECK}: {settings.shown(HOST_CHECK)} is not supported. Use https or, to accept a "
            "certificate of any host, none or an empty value"
        )
    trusted_name, trusted = read_trusted(
        settings, ("ssl.truststore.location", TRUSTED, "ssl.ca.location", "ssl.ca.pem"), where
    )
    key_name, chain, key = _client_certificate(settings)
    key_password = settings.get("ssl.key.password") if key is not None and "ENCRYPTED" in key else None
    if key is not None:
        key = _checked(key_name, key, lambda text: pem.private_key(text, key_password))
    found = TlsSettings(
        trusted,
        chain,
        key,
        key_password if key is not None and pem.is_encrypted(key) else None,
        checks_host=checks is None or checks.lower() == "https",
    )
    try:
        context_of(found)
    except PemError as error:
        names = trusted_name if chain is None else f"{trusted_name}, {key_name}"
        raise ClientConfigError(f"{names}: {error}") from None
    return found


def read_trusted(settings: UsedSettings, names: tuple[str, ...], where: str = "") -> tuple[str, str | None]:
    """Return the first of `names` that is set, and its trusted certificates or None.

    Raises ClientConfigError.
    """
    settings.text("ssl.truststore.type")  # counts as used, although the content shows the type
    name, value = settings.first(*names)
    name_shown = where + name
    if value is None or (name == "ssl.ca.location" and value == _PROBE):
        return name_shown, None
    text = _content(settings, name, value, "ssl.truststore.password", where)
    return name_shown, _checked(name_shown, text, pem.certificates)


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
    """Return the name of the key's setting, the certificate chain, and the text with the key."""
    settings.text("ssl.keystore.type")
    store = settings.get("ssl.keystore.location")
    if store is not None:
        text = _content(settings, "ssl.keystore.location", store, "ssl.keystore.password")
        return "ssl.keystore.location", _checked("ssl.keystore.location", text, pem.certificates), text
    (chain_name, chain), (key_name, key) = settings.first(*_CHAINS), settings.first(*_KEYS)
    if chain is None and key is None:
        return key_name, None, None
    if key is None:
        key_name = _KEYS[_CHAINS.index(chain_name)]
    if chain is None:
        chain_name = _CHAINS[_KEYS.index(key_name)]
    if chain is None or key is None:
        raise ClientConfigError(f"{chain_name} and {key_name} belong together")
    chain = _checked(chain_name, _content(settings, chain_name, chain), pem.certificates)
    return key_name, chain, _content(settings, key_name, key)


def _content(
    settings: UsedSettings, name: str, value: str, password_name: str | None = None, where: str = ""
) -> str:
    """Return the PEM text of a setting: its value, or the content of the file that it names.

    `password_name` is the setting with a store's password.
    """
    if name not in _FILES:
        return value
    if "-----BEGIN" in value:
        raise ClientConfigError(f"{where}{name} is the path of a file, and its value is the text of one")
    try:
        return pem.read_store(Path(value), lambda: settings.get(password_name) if password_name else None)
    except (OSError, PemError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    hint = f" ({where}{password_name})" if password_name and reason.endswith("password") else ""
    raise ClientConfigError(f"{where}{name}: {settings.shown(name)} cannot be read: {reason}{hint}")


def _checked(name: str, text: str, read: Callable[[str], str]) -> str:
    try:
        return read(text)
    except PemError as error:
        raise ClientConfigError(f"{name}: {error}") from None
