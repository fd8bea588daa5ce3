"""HTTP requests with one deadline for the whole exchange.

The timeout of `urllib` is for each connect and each read, so a server that sends a byte now and then would
hold its client for as long as it likes.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLContext
from typing import Any
from urllib.request import (
    BaseHandler,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
    build_opener,
)


@contextmanager
def exchange(
    timeout_s: float, context: SSLContext | None = None, handlers: tuple[BaseHandler, ...] = ()
) -> Iterator[OpenerDirector]:
    """Yield an opener whose connections are shut down `timeout_s` after this call.

    The limit includes connects, proxies, TLS, requests and responses, but not the name resolver. `context`
    verifies the servers, and `handlers` are added to those of `urllib`. Responses must be read within the
    block. Raises TimeoutError, in the block or at its end.
    """
    connections = _Connections(timeout_s)
    opener = build_opener(_Http(connections), _Https(connections, context), *handlers)
    try:
        yield opener
    except (OSError, HTTPException, ValueError) as error:  # ValueError: a truncated document
        if connections.left_s() <= 0:
            raise TimeoutError(f"no complete answer within {timeout_s:g} s") from error
        raise
    else:
        if connections.left_s() <= 0:  # a truncated body may look like a short one
            raise TimeoutError(f"no complete answer within {timeout_s:g} s")
    finally:
        connections.close()


class _Connections:
    """A group of sockets, which are shut down together when the time is over."""

    def __init__(self, timeout_s: float) -> None:
        self._give_up_s = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._duplicates: list[socket.socket] = []
        self._timer = threading.Timer(timeout_s, self._shut_down)
        self._timer.daemon = True
        self._timer.start()

    def left_s(self) -> float:
        return self._give_up_s - time.monotonic()

    def factory(self, kind: Callable[..., HTTPConnection]) -> Callable[..., HTTPConnection]:
        """Return a factory of `kind` for `urllib`, whose connections use the sockets of this object."""

        def build(host: str, **settings: Any) -> HTTPConnection:
            connection = kind(host, **settings)
            connection._create_connection = self._connect_to  # type: ignore[attr-defined]
            return connection

        return build

    def _connect_to(
        self, address: tuple[str, int], _timeout: object, source: tuple[str, int] | None
    ) -> socket.socket:
        """Connect as `socket.create_connection` does, with one timeout for all addresses of a name."""
        failed: OSError | None = None
        for family, kind, protocol, _, found in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            try:
                return self._connect(socket.socket(family, kind, protocol), found, source)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{address[0]} has no address")

    def _connect(self, opened: socket.socket, address: Any, source: tuple[str, int] | None) -> socket.socket:
        try:
            opened.settimeout(max(self.left_s(), 0.001))
            if source is not None:
                opened.bind(source)
            opened.connect(address)
            # TLS takes over the socket, and `urllib` closes it. A duplicate can be shut down at any time.
            with self._lock:
                self._duplicates.append(opened.dup())
                if self.left_s() <= 0:  # `_shut_down` may have run already
                    raise TimeoutError
        except OSError:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            # Their users have closed the sockets themselves.
            for duplicate in self._duplicates:
                duplicate.close()
            self._duplicates.clear()

    def _shut_down(self) -> None:
        with self._lock:
            for duplicate in self._duplicates:
                with suppress(OSError):  # the other side was faster
                    duplicate.shutdown(socket.SHUT_RDWR)


class _Http(HTTPHandler):
    def __init__(self, connections: _Connections) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(self._connections.factory(HTTPConnection), req)


class _Https(HTTPSHandler):
    def __init__(self, connections: _Connections, context: SSLContext | None) -> None:
        super().__init__()
        self._connections = connections
        self._verified_by = context

    def https_open(self, req: Request) -> HTTPResponse:
        kind = partial(HTTPSConnection, context=self._verified_by)
        return self.do_open(self._connections.factory(kind), req)
