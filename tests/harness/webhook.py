"""A receiver of webhooks: a real web server in a thread, which answers what a test wants."""

import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

HANG = 0
"""In the place of a status: the request is read, and there is no answer until the server ends."""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Received:
    """A request, and how it was answered."""

    path: str
    headers: Mapping[str, str]
    body: Any
    status: int


class Webhook:
    """Listens on a loopback port during the `with` block. It gives the `replies` in their order, and then
    `default`.
    """

    def __init__(
        self, *replies: Reply, default: Reply | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.default = default or Reply()
        self._replies = deque(replies)
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self._is_over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._serve, name="webhook", daemon=True)

    def url(self, path: str = "/hook") -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}{path}"

    @property
    def received(self) -> list[Received]:
        with self._changed:
            return list(self._received)

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the accepted requests in JSON of our own, in their order."""
        return [one for got in self.received if got.status == 200 for one in got.body["messages"]]

    def wait_for(self, found: Callable[[Self], bool], what: str, timeout_s: float = 120.0) -> None:
        """Wait until requests have come for which `found` is true; fails saying what did not come."""
        with self._changed:
            assert self._changed.wait_for(lambda: found(self), timeout_s), (
                f"not within {timeout_s:.0f} s: {what}; received: {self._received}"
            )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.02)

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        with self._changed:
            reply = self._replies.popleft() if self._replies else self.default
            self._received.append(Received(path, headers, json.loads(body), reply.status))
            self._changed.notify_all()
        if reply.status == HANG:
            self._is_over.wait()
        return reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        take = self._take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                reply = take(self.path, dict(self.headers), body)
                if reply.status == HANG:
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Log nothing."""

        return Handler
