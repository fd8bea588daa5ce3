"""Why a client of kafka-python does not reach its cluster: what it tries again and only writes to its log."""

import ssl
from collections.abc import Callable
from typing import Any

from kafka.errors import (
    IllegalSaslStateError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from records.oauth_tokens import TokenError


class ClusterRefused(KafkaError):  # type: ignore[misc] # kafka-python ships no types
    """A broker refuses the login, or its certificate is not trusted. The message says what to change."""

    def __str__(self) -> str:
        return str(self.args[0])


class Refusals:
    """Collects why connections failed, for one client that is given `client` as its `kafka_client`."""

    def __init__(self) -> None:
        self._found: list[ClusterRefused] = []

    def client(self, **settings: Any) -> KafkaNetClient:
        """kafka-python's network client, which reports here."""
        net = NetworkSelector(**settings)
        return KafkaNetClient(net=net, manager=_Manager(self._note, net, **settings))

    def raise_first(self, error: Exception) -> None:
        """Raise the first refusal, if there was one. `error` is what the client's maker raised."""
        if self._found:
            raise self._found[0] from error

    def _note(self, address: str, settings: dict[str, Any], error: Exception) -> None:
        reason = _reason(address, settings, error)
        if reason is not None:
            self._found.append(ClusterRefused(reason))


class _Manager(KafkaConnectionManager):  # type: ignore[misc] # kafka-python ships no types
    """Tells why each connection failed."""

    def __init__(
        self, note: Callable[[str, dict[str, Any], Exception], None], net: NetworkSelector, **settings: Any
    ) -> None:
        self._note = note
        super().__init__(net, **settings)

    def get_connection(self, node_id: Any, *given: Any, **options: Any) -> Any:
        is_new = node_id not in self._conns
        connection = super().get_connection(node_id, *given, **options)
        if is_new:
            node = self.cluster.broker_metadata(node_id)
            address = f"{node.host}:{node.port}"
            connection.init_future.add_errback(lambda error: self._note(address, self.config, error))
        return connection


def _reason(address: str, settings: dict[str, Any], error: Exception) -> str | None:
    """A sentence for an error that another attempt will not mend, None for others."""
    mechanism = settings.get("sasl_mechanism")
    if isinstance(error, TokenError):
        return str(error.args[0])
    if isinstance(error, SaslAuthenticationFailedError):
        user = settings.get("sasl_plain_username")
        who = f"as {user} by {mechanism}" if user else f"by {mechanism}"
        return f"the broker at {address} refuses the login {who}: {_last(error)}"
    if isinstance(error, UnsupportedSaslMechanismError):
        return f"the broker at {address} has no login by {mechanism} (sasl.mechanism): {_last(error)}"
    if isinstance(error, KafkaConfigurationError):
        return str(error)
    if isinstance(error, IllegalSaslStateError):
        return f"the broker at {address} expects no login on this port (security.protocol)"
    if isinstance(error, KafkaConnectionError):
        # A refused certificate of the client is first seen by what is read after the handshake.
        cause = error.args[0] if error.args and isinstance(error.args[0], ssl.SSLError) else error.__context__
        return _reason_of_tls(address, cause)
    return None


def _reason_of_tls(address: str, error: BaseException | None) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the broker at {address} is not trusted (ssl.truststore): "
            f"{error.verify_message}"
        )
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"the broker at {address} does not speak TLS on this port (security.protocol)"
    if isinstance(error, ssl.SSLError) and "CERTIFICATE_REQUIRED" in (error.reason or ""):
        return f"the broker at {address} wants a certificate of the client (ssl.keystore)"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection to the broker at {address}: {error.reason or error}"
    return None


def _last(error: Exception) -> str:
    """The broker's own words, without kafka-python's name of the error before them."""
    text = str(error.args[0]) if error.args else type(error).__name__
    return text.partition(": ")[2] or text
