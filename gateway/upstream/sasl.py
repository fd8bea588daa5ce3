"""The gateway's side of SASL towards the brokers, without IO: PLAIN, SCRAM and OAUTHBEARER.

kafka-python has the mechanisms. To its SCRAM (RFC 5802) this module adds a minimum number of iterations. It
also calculates the salted password only once for all connections, because that takes milliseconds and the
gateway has a connection for each client.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.scram import ScramClient

from kafka_why.connections.used_settings import ClientConfigError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The mechanisms that the gateway can use, and whose user names it can read from a client's exchange."""

# The minimum that Kafka's brokers store: org.apache.kafka.common.security.scram.internals.ScramMechanism.
_MIN_ITERATIONS = 4096
# More salted passwords are not cached. A broker has one salt for a user and mechanism until the password
# changes.
_SALTED_MAX = 16


class SaslError(ValueError):
    """The broker violates the exchange's protocol. The error's text is a sentence."""


class ClientExchange(Protocol):
    """The client's side of one authentication: `auth_bytes` and `receive` alternate until `is_done`."""

    def auth_bytes(self) -> bytes:
        """Return the client's next message. May block while a token is requested."""

    def receive(self, auth_bytes: bytes) -> object:
        """Evaluate the broker's answer. Raises SaslError."""

    def is_done(self) -> bool:
        """Return True if client and broker have accepted each other."""


class Sasl:
    """The gateway's own SASL credentials. Raises ClientConfigError for an unknown mechanism.

    `settings` have kafka-python's names, such as `sasl_mechanism`. A user name for SCRAM is already escaped
    (RFC 5802, section 5.1).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.mechanism: str = settings["sasl_mechanism"]
        if self.mechanism not in MECHANISMS:
            raise ClientConfigError(
                f"sasl.mechanism is {self.mechanism}, and the gateway has {', '.join(MECHANISMS)}"
            )
        self._settings = dict(settings)
        self._salted: dict[tuple[bytes, int], bytes] = {}

    def begin(self) -> ClientExchange:
        """Begin an authentication."""
        if self.mechanism.startswith("SCRAM-"):
            return _Scram(self._settings, self._salted)
        # Without `security_protocol`, because kafka-python would log a warning about it for each connection.
        given = {name: value for name, value in self._settings.items() if name.startswith("sasl_")}
        return cast(ClientExchange, get_sasl_mechanism(self.mechanism)(**given))


class _Scram:
    def __init__(self, settings: Mapping[str, Any], salted: dict[tuple[bytes, int], bytes]) -> None:
        user, password = settings["sasl_plain_username"], settings["sasl_plain_password"]
        self._client = _SaltingOnce(user, password, settings["sasl_mechanism"])
        self._client.salted = salted
        self._answers = 0

    def auth_bytes(self) -> bytes:
        return bytes(self._client.final_message() if self._answers else self._client.first_message())

    def receive(self, auth_bytes: bytes) -> None:
        try:
            if self._answers:
                self._client.process_server_final_message(auth_bytes)
            else:
                self._client.process_server_first_message(auth_bytes)
        except SaslError:
            raise
        except (KeyError, ValueError) as error:
            # Only a broker with the user's credentials can sign the exchange.
            what = "does not prove that it has the user's credentials" if self._answers else "is malformed"
            raise SaslError(f"its message of the SCRAM exchange {what}") from error
        self._answers += 1

    def is_done(self) -> bool:
        return self._answers == 2


class _SaltingOnce(ScramClient):  # type: ignore[misc]
    salted: dict[tuple[bytes, int], bytes]
    salted_password: bytes

    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        """Set the salted password, from `salted` if it has been calculated before."""
        if iterations < _MIN_ITERATIONS:
            # An impostor could request few iterations, and find the password from the proof.
            raise SaslError(f"it asks for {iterations} iterations of SCRAM, fewer than {_MIN_ITERATIONS}")
        key = salt, iterations
        if key not in self.salted:
            super().create_salted_password(salt, iterations)
            if len(self.salted) >= _SALTED_MAX:
                self.salted.clear()
            self.salted[key] = self.salted_password
        self.salted_password = self.salted[key]
