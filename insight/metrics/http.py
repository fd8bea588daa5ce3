"""The HTTP port of a process: its metrics for Prometheus, and whether it is alive and ready.

`/healthz` says whether the process lives, `/readyz` whether it does its work. Both answer 200 or 503 with a
JSON object that has each check and why it fails, and notes about checks that do not fail. `?exclude=NAME`
leaves a check out, as at Kubernetes' own API server. `/status` is the service's state, where there is one.
All other paths are the metrics.
"""

import json
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from socketserver import TCPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from insight.client_slots import ClientSlots
from insight.service_state import PATH

MAX_CONNECTIONS = 100
SILENT_MAX_S = 10
"""The time for which a connection may neither send nor read anything."""


class Note(NamedTuple):
    """A check does not fail, but there is something to say."""

    text: str


Checks = Mapping[str, str | Note | None]
"""The reason why a check fails, by the check's name. None or a note: it does not fail."""
Check = Callable[[Collection[str]], Checks]
"""Makes the checks, except those of the given names."""


class MetricsUnavailable(RuntimeError):
    """The metrics cannot be served; the message names the address and the reason."""


class HttpPort:
    """Serves until closed. `checks` are by path. `state` returns the service's state as JSON. Port 0 means
    any free port. Raises MetricsUnavailable.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        checks: Mapping[str, Check] | None = None,
        state: Callable[[], bytes] | None = None,
    ) -> None:
        self._host = host
        self._metrics = make_wsgi_app(registry)
        self._checks = checks or {}
        self._state = state
        # Two scrapes at the same time would only slow each other, and the threads of the process.
        self._scraping = threading.Lock()

        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

            class Server(_BoundedServer):
                address_family = family

                def server_bind(self) -> None:
                    """Bind. HTTPServer would wait for DNS, because it asks for the full name of the host."""
                    TCPServer.server_bind(self)
                    address, self.server_port = self.server_address[:2]
                    self.server_name = str(address)
                    self.setup_environ()

            self._server = make_server(host, port, self._answer, Server, handler_class=_Quiet)
        except OSError as error:
            raise MetricsUnavailable(f"cannot serve metrics on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL to scrape."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self._state is not None and environ["PATH_INFO"] == PATH:
            document = self._state()
            start_response("200 OK", [("Content-Type", "application/json")])
            return [document]
        check = self._checks.get(environ["PATH_INFO"])
        if check is None:
            with self._scraping:
                metrics: Iterable[bytes] = self._metrics(environ, start_response)
            return metrics
        exclude = parse_qs(environ.get("QUERY_STRING", "")).get("exclude", [])
        try:
            found = check(exclude)
        except Exception as error:  # noqa: BLE001 - a check that fails in any way is a reason
            found = {"check": repr(error)}
        failures = {name: reason for name, reason in found.items() if isinstance(reason, str)}
        body = {
            "ok": not failures,
            "checks": {name: failures.get(name, "ok") for name in found},
            "notes": {name: note.text for name, note in found.items() if isinstance(note, Note)},
        }
        start_response(
            "503 Service Unavailable" if failures else "200 OK", [("Content-Type", "application/json")]
        )
        return [json.dumps(body).encode() + b"\n"]


class _BoundedServer(ThreadingWSGIServer):
    """A server with a thread for each of at most MAX_CONNECTIONS connections."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._slots = ClientSlots[socket.socket](
            MAX_CONNECTIONS, lambda connection: connection not in self.answered, ends_busy=False
        )
        self.answered: set[socket.socket] = set()
        """The connections whose request has come."""
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """See `socketserver.BaseServer`."""
        ended = self._slots.add(client_address[0], request)
        if ended is request:
            self.shutdown_request(request)
            return
        if ended is not None:
            with suppress(OSError):  # its thread has just ended it
                ended.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """See `socketserver.BaseServer`."""
        self._slots.remove(request)
        self.answered.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See `socketserver.BaseServer`. A client that goes, or sends nothing, is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Quiet(WSGIRequestHandler):
    """Logs no requests."""

    timeout = SILENT_MAX_S
    server: _BoundedServer

    def get_environ(self) -> dict[str, Any]:
        """See `WSGIRequestHandler`, which calls it when the request has come."""
        self.server.answered.add(self.connection)
        return super().get_environ()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """See `BaseHTTPRequestHandler`."""
