"""HTTP requests with one deadline for the whole exchange.

The timeout of `urllib` is for each connect and each read, so a server that sends a byte now and then could
hold its client forever.
"""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from ssl import SSLContext
from typing import Any, TypeVar
from urllib.request import BaseHandler, HTTPHandler, HTTPSHandler, OpenerDirector, Request, build_opener

T = TypeVar("T")


def exchange(
    ask: Callable[[OpenerDirector], T],
    timeout_s: float,
    context: SSLContext | None = None,
    handlers: tuple[BaseHandler, ...] = (),
) -> T:
    """Call `ask` on a new thread, with an opener to send requests by. Return its result.

    Raises the errors of `ask`, or TimeoutError after `timeout_s`. The connections are then shut down. The
    limit includes name resolvers, connects, proxies, TLS, requests and responses. `context` verifies the
    servers, and `handlers` are added to the default handlers of `urllib`.
    """
    connections = _Connections(connect_timeout_s=2 * timeout_s, context=context)
    opener = build_opener(connections, *handlers)
    result: Future[T] = Future()
    deadline_s = time.monotonic() + timeout_s

    def run() -> None:
        try:
            result.set_result(ask(opener))
        except Exception as error:  # noqa: BLE001 - `result.result` raises it
            result.set_exception(error)

    threading.Thread(target=run, name="http-exchange", daemon=True).start()
    try:
        wait([result], timeout_s)
        # On a busy machine this thread may wake up after a socket's own timeout, which is longer.
        if not result.done() or (result.exception() is not None and time.monotonic() >= deadline_s):
            raise TimeoutError(f"no complete answer within {timeout_s:g} s")
        return result.result()
    finally:
        connections.end()


class _Connections(HTTPSHandler, HTTPHandler):
    """A handler of `urllib` whose connections can be ended from another thread."""

    def __init__(self, connect_timeout_s: float, context: SSLContext | None) -> None:
        super().__init__(context=context)
        self._connect_timeout_s = connect_timeout_s
        self._tls_context = context
        self._lock = threading.Lock()
        self._has_ended = False
        self._duplicates: list[socket.socket] = []  # a duplicate of each connection's socket

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPConnection), req)

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPSConnection, context=self._tls_context), req)

    def _connection(
        self, connection_class: Callable[..., HTTPConnection], host: str, **settings: Any
    ) -> HTTPConnection:
        connection = connection_class(host, **settings)
        connection._create_connection = self._connect  # type: ignore[attr-defined]
        return connection

    def _connect(
        self, address: tuple[str, int], _timeout: object, source: tuple[str, int] | None
    ) -> socket.socket:
        # The timeout ends a connect that is still under way after the deadline.
        connected_socket = socket.create_connection(address, self._connect_timeout_s, source)
        with self._lock:
            if self._has_ended:
                connected_socket.close()
                raise TimeoutError
            # TLS takes over the socket, and `urllib` closes it. A duplicate can be shut down at any time.
            self._duplicates.append(connected_socket.dup())
        return connected_socket

    def end(self) -> None:
        """End all connections, including a connection that is still being established."""
        with self._lock:
            self._has_ended = True
            for duplicate in self._duplicates:
                with suppress(OSError):  # the other side was faster
                    duplicate.shutdown(socket.SHUT_RDWR)
                duplicate.close()
