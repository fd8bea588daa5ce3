"""What a transport knows of its two ends."""

import ssl
from asyncio import Transport


class Endpoint:
    """One side of a client's connection. `_transport` is set when the client is connected."""

    __slots__ = ("_transport",)

    _transport: Transport

    @property
    def peer(self) -> str:
        """The client's IP address."""
        return str((self._transport.get_extra_info("peername") or ("unknown", 0))[0])

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's certificate in DER, None if it shows none."""
        tls = self._transport.get_extra_info("ssl_object")
        certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return certificate

    @property
    def own_host(self) -> str:
        """The gateway's IP address of this connection."""
        return str(self._transport.get_extra_info("sockname")[0])

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS side of this connection, None for plain text."""
        found: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return found
