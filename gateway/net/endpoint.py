"""The transports of one connection, with TLS or without."""

import ssl
from asyncio import Transport

Endpoints = tuple[tuple[str, int], tuple[str, int]]
"""The addresses of the other side and of the gateway's socket."""


class Endpoint:
    """The transports of a connection, which are set when it is connected. `_socket` is the one below TLS.
    Without TLS both are the same.
    """

    __slots__ = ("_socket", "_transport")

    _socket: Transport
    _transport: Transport

    @property
    def held_bytes(self) -> int:
        """The bytes written to the connection that the kernel does not have yet."""
        held = self._transport.get_write_buffer_size()
        return held if self._socket is self._transport else held + self._socket.get_write_buffer_size()

    @property
    def peer(self) -> str:
        """The IP address of the other side."""
        return str((self._transport.get_extra_info("peername") or ("unknown", 0))[0])

    @property
    def endpoints(self) -> Endpoints:
        """The addresses of both ends of a connection that is open."""
        peer, own = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        return (peer[0], peer[1]), (own[0], own[1])

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
        """The TLS side of this connection, or None for plain text."""
        found: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return found
