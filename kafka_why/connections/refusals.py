"""The reasons why a kafka-python client cannot connect. kafka-python itself only logs them, and retries."""

import os
import ssl
from functools import partial
from typing import Any

from kafka.errors import (
    IllegalSaslStateError,
    InvalidReceiveError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.oauth_tokens import SentenceError, TokenError

# Errors of a broker that retrying cannot fix, with templates of what the broker does. Their placeholders are
# settings of kafka-python, `as_user` and `broker_message`.
_REASONS = {
    SaslAuthenticationFailedError: "refuses the login {as_user}by {sasl_mechanism}: {broker_message}",
    UnsupportedSaslMechanismError: "has no login by {sasl_mechanism} (sasl.mechanism): {broker_message}",
    InvalidReceiveError: "does not speak {security_protocol} (security.protocol)",  # it sent an alert of TLS
    IllegalSaslStateError: "expects no login on this port (security.protocol)",
}


class ClusterRefused(SentenceError):
    """The error when a broker refuses the login, or its certificate is not trusted.

    Its message says what to change.
    """


class NoBroker(SentenceError, KafkaTimeoutError):  # type: ignore[misc] # kafka-python ships no types
    """The error when no broker answers. Its message has the last failure of a connection, if known."""

    def __init__(self, client_config: ClientConfig, failure: str | None) -> None:
        super().__init__(f"no Kafka broker answers ({failure or client_config})")


class Refusals:
    """A recorder of a kafka-python client's connection failures.

    The client gets `client` as its `kafka_client`. `latest` is the server that was tried last, as
    ``host:port``. `failure` is the last failed connection, whatever the error: its server and the reason.
    """

    def __init__(self) -> None:
        self.latest: str | None = None
        self.failure: str | None = None
        self._refusal: str | None = None  # the first failure that no retry can mend
        # The last connection that the broker closed without a reason, perhaps because it refuses the client.
        self._possible_refusal: str | None = None

    def client(self, **settings: Any) -> KafkaNetClient:
        """Return kafka-python's network client. It reports its failures to this object."""
        net = NetworkSelector(**settings)
        return KafkaNetClient(net=net, manager=_Manager(self, net, **settings))

    def raise_first(self, error: Exception, *, is_last: bool) -> None:
        """Raise ClusterRefused from `error` if a broker refused the client.

        `error` is the exception of the client's constructor. After the last attempt, a connection that the
        broker closed also counts as a refusal.
        """
        if refusal := self._refusal or (self._possible_refusal if is_last else None):
            raise ClusterRefused(refusal) from error

    def record(self, address: str, settings: dict[str, Any], error: Exception | None) -> None:
        """Record that a connection to a broker ended with this error."""
        if error is not None:
            self.failure = f"{address}: {_failure_text(error)}"
        refusal = _refusal_text(address, settings, error)
        cause = error.args[0] if isinstance(error, KafkaConnectionError) and error.args else None
        if refusal is not None:
            self._refusal = self._refusal or refusal
        elif cause == "socket disconnected" or isinstance(cause, ConnectionError):
            protocol = settings["security_protocol"]
            self._possible_refusal = (
                f"the broker at {address} closes connections by {protocol}: does it expect another "
                "security.protocol, or a certificate (ssl.keystore)?"
            )


class _Manager(KafkaConnectionManager):  # type: ignore[misc] # kafka-python ships no types
    """A connection manager that reports each connection and its error to `refusals`."""

    def __init__(self, refusals: Refusals, net: NetworkSelector, **settings: Any) -> None:
        self._refusals = refusals
        super().__init__(net, **settings)

    def get_connection(self, node_id: Any, *args: Any, **options: Any) -> Any:
        is_new = node_id not in self._conns
        connection = super().get_connection(node_id, *args, **options)
        if is_new:
            node = self.cluster.broker_metadata(node_id)
            self._refusals.latest = address = f"{node.host}:{node.port}"
            record = partial(self._refusals.record, address, self.config)
            connection.close_future.add_errback(record)
        return connection

    async def _build_transport(self, *args: Any, **options: Any) -> Any:
        transport = await super()._build_transport(*args, **options)
        receive = transport._sock_recv

        def receive_all() -> tuple[bytes, Exception | None]:
            """Return data that arrived with the end of the connection; the next call returns the error.

            A broker that refuses a login sends the reason and closes. kafka-python would drop the reason.
            """
            data, error = receive()
            return (data, None) if data else (data, error)

        transport._sock_recv = receive_all
        return transport


def _refusal_text(address: str, settings: dict[str, Any], error: Exception | None) -> str | None:
    """Return a sentence about an error that no retry can mend, or None."""
    if isinstance(error, (TokenError, KafkaConfigurationError)):
        return str(error)
    for error_class, template in _REASONS.items():
        if isinstance(error, error_class):
            user = settings.get("sasl_plain_username")
            as_user = f"as {user} " if user else ""
            refusal = template.format(as_user=as_user, broker_message=_broker_message(error), **settings)
            return f"the broker at {address} {refusal}"
    if isinstance(error, KafkaConnectionError):
        # An error of the handshake is the error's context. A refusal of a client's certificate shows only in
        # the first read after the handshake, and is the error's argument.
        cause = error.args[0] if error.args and isinstance(error.args[0], ssl.SSLError) else error.__context__
        return _tls_reason(address, cause)
    return None


def _tls_reason(address: str, error: BaseException | None) -> str | None:
    """Return a sentence about an error of TLS, or None for another error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the broker at {address} is not trusted (ssl.truststore): "
            f"{error.verify_message}"
        )
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"the broker at {address} does not speak TLS on this port (security.protocol)"
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
        return f"the broker at {address} requires a client certificate that it trusts (ssl.keystore)"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection to the broker at {address}: {error.reason or error}"
    return None


def _failure_text(error: Exception) -> str:
    """Return why a connection ended, in words that the system uses for errors of sockets."""
    if isinstance(error, RequestTimedOutError):
        return "it accepts connections, but does not answer"
    cause = str(error.args[0]) if error.args else type(error).__name__
    errno, _, name = cause.partition(" ")  # kafka-python writes "111 ECONNREFUSED"
    return os.strerror(int(errno)) if errno.isdecimal() and name.startswith("E") else cause


def _broker_message(error: Exception) -> str:
    """Return the broker's message, without kafka-python's name of the error before it."""
    text = str(error.args[0]) if error.args else type(error).__name__
    return text.partition(": ")[2] or text
