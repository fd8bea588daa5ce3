"""A receiver of webhooks: a real web server in a thread, whose answers the test sets."""

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
"""A status that means: read the request, and send no answer until the server ends."""


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
    """Listens on a loopback port within the `with` block. It answers with the `replies` in order, then with
    `default`.
    """

    def __init__(
        self, *replies: Reply, default: Reply | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.default = default or Reply()
        self._replies = deque(replies)
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self._has_ended = threading.Event()
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
        """Return the messages of the accepted requests in the project's own JSON format, in order."""
        accepted = [request.body["messages"] for request in self.received if request.status == 200]
        return [message for messages in accepted for message in messages]

    def wait_for(self, condition: Callable[[Self], bool], what: str, timeout_s: float = 120.0) -> None:
        """Wait until `condition` is true for the requests. Raise AssertionError with `what` if not."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), timeout_s), (
                f"not within {timeout_s:.0f} s: {what}; received: {self._received}"
            )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._has_ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.02)

    def _record_and_reply(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        with self._changed:
            reply = self._replies.popleft() if self._replies else self.default
            self._received.append(Received(path, headers, json.loads(body), reply.status))
            self._changed.notify_all()
        if reply.status == HANG:
            self._has_ended.wait()
        return reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        record_and_reply = self._record_and_reply

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                reply = record_and_reply(self.path, dict(self.headers), body)
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
