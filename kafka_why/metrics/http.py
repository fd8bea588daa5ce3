"""The HTTP port of a process: its metrics for Prometheus, and its liveness and readiness.

`/healthz` reports if the process is alive, `/readyz` if it is ready. Both answer 200 or 503 with a JSON
object that has each check, the reason of each failure, and notes about checks that pass. `?exclude=NAME`
omits a check, as in Kubernetes' API server. `/status` returns the service's state, if it has one. All other
paths return the metrics.
"""

import gzip
import json
import threading
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kafka_why.lifetimes import Closeable
from kafka_why.service_state import STATUS_PATH
from kafka_why.web import WebServer, listening_at, url_of

MAX_CONNECTIONS = 100


class CheckNote(NamedTuple):
    """A remark about a check that passes."""

    text: str


CheckResults = Mapping[str, str | CheckNote | None]
"""By the name of a check: the reason why it fails, or a note or None if it passes."""
HealthCheck = Callable[[Collection[str]], CheckResults]
"""A function that runs the checks, except those with the given names."""
Endpoint = Callable[[Request], Response]
"""A function that is called in a separate thread, so that a long scrape delays no check."""


class HttpPort(Closeable):
    """A server of metrics and checks until closed. Raises WebUnavailable.

    `checks` are by path. `state` returns the state as JSON. Port 0 means any free port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        checks: Mapping[str, HealthCheck] | None = None,
        state: Callable[[], bytes] | None = None,
    ) -> None:
        endpoints = {path: _check_endpoint(check) for path, check in (checks or {}).items()}
        if state is not None:
            endpoints[STATUS_PATH] = lambda _: Response(state(), media_type="application/json")
        endpoints["/{path:path}"] = _metrics_endpoint(registry)
        self._listening = listening_at(host, port, "metrics")
        self.url = f"{url_of(self._listening)}metrics"
        """The URL to scrape."""
        routes = [Route(path, endpoint) for path, endpoint in endpoints.items()]
        self._web = WebServer(
            Starlette(routes=routes), self._listening, max_connections=MAX_CONNECTIONS, ends_busy=False
        )
        self._web.start()

    def close(self) -> None:
        """End the server."""
        self._web.stop()
        self._listening.close()


def _metrics_endpoint(registry: CollectorRegistry) -> Endpoint:
    # Two scrapes at the same time would only slow each other, and the threads of the process.
    scraping = threading.Lock()

    def scrape(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        headers = {"Content-Type": content_type}
        names = request.query_params.getlist("name[]")
        with scraping:
            body = encode(registry.restricted_registry(names) if names else registry)
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        return Response(body, headers=headers)

    return scrape


def _check_endpoint(check: HealthCheck) -> Endpoint:
    def answer(request: Request) -> Response:
        try:
            results = check(request.query_params.getlist("exclude"))
        except Exception as error:  # noqa: BLE001 - any error of a check is a failure of it
            results = {"check": repr(error)}
        failures = {name: reason for name, reason in results.items() if isinstance(reason, str)}
        body = {
            "ok": not failures,
            "checks": {name: failures.get(name, "ok") for name in results},
            "notes": {name: note.text for name, note in results.items() if isinstance(note, CheckNote)},
        }
        return Response(
            json.dumps(body).encode() + b"\n",
            status_code=503 if failures else 200,
            media_type="application/json",
        )

    return answer
