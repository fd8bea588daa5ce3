"""How the gateway reaches brokers: plain text or TLS, with or without SASL."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gateway.upstream.sasl import Sasl


@dataclass(frozen=True, slots=True)
class Access:
    """`tls` is None for plain text. `sasl` is None if the gateway does not authenticate itself by SASL."""

    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """By a Kafka client's settings under kafka-python's names. Raises ClientConfigError."""
        protocol = settings.get("security_protocol", "PLAINTEXT")
        tls = settings["ssl_context"] if protocol in ("SSL", "SASL_SSL") else None
        return cls(tls, Sasl(settings) if protocol.startswith("SASL_") else None)

    def without_sasl(self) -> Self:
        """The same, where a client authenticates by the connection itself."""
        return replace(self, sasl=None)


PLAIN_TEXT = Access()
