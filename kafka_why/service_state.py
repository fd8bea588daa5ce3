"""The state of a coordinator's process, which it serves as JSON next to its metrics (`/status`)."""

import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from urllib.parse import urljoin

import msgspec
from msgspec import Struct

from kafka_why.connections.http_exchange import exchange
from kafka_why.contract.service import ReplicaState, ServiceStatus, TransactionsSummary
from kafka_why.wording import duration_text

PATH = "/status"
FRESH_S = 2.0
"""The greatest age of a state that is returned without another request."""
TIMEOUT_S = 3.0
MAX_BYTES = 4 * 1024 * 1024


class Durations(Struct, frozen=True):
    """A summary of durations since the process started.

    A bound is None beyond the histogram's largest bound.
    """

    number: int
    mean_ms: int
    half_ms: int | None  # upper bound of the median
    most_ms: int | None  # upper bound of the 99th percentile

    @property
    def text(self) -> str:
        """Return a text such as `half within 250 ms, 99 % within 1.5 s, mean 310 ms`."""
        half, most = (
            "beyond the measured range" if ms is None else f"within {duration_text(ms)}"
            for ms in (self.half_ms, self.most_ms)
        )
        return f"half {half}, 99 % {most}, mean {duration_text(self.mean_ms)}"


def durations(bounds_s: Sequence[float], cumulative: Sequence[float], sum_s: float) -> Durations | None:
    """Return the summary of a histogram, or None if it is empty.

    `cumulative` has the number of values up to each bound, then of all values.
    """
    number = cumulative[-1]
    if not number:
        return None

    def bound_ms(share: float) -> int | None:
        bounds = zip((*bounds_s, math.inf), cumulative, strict=True)
        bound_s = next(bound for bound, counted in bounds if counted >= share * number)
        return round(bound_s * 1000) if math.isfinite(bound_s) else None

    return Durations(round(number), round(sum_s * 1000 / number), bound_ms(0.5), bound_ms(0.99))


class BatchesState(Struct, frozen=True, kw_only=True):
    """The batches since the start. Fields are None if not known yet."""

    last_ms: int | None  # duration of the last one
    age_ms: int | None  # of the last one
    durations: Durations | None
    time_lag_ms: int | None  # the clock's lead over the watermark
    rows_dropped: int


class GatewayState(Struct, frozen=True):
    """The gateway in the same process."""

    connections: int
    latencies: dict[str, Durations]  # the gateway's own, by Kafka API
    answers: dict[str, Durations]  # the coordinator's, as the gateway measures them, by request


class ServiceState(Struct, frozen=True, kw_only=True):
    """The state of the process. An observer has no replica, transactions or gateway."""

    status: ServiceStatus
    spark_restarts: int
    ticker_age_ms: int | None  # as the next, None if not known yet
    backlog_records: int | None
    batches: BatchesState
    replica: ReplicaState | None = None
    transactions: TransactionsSummary | None = None
    gateway: GatewayState | None = None


class Unreadable(Exception):
    """The error when the process does not answer, or another server does."""


class StateReader:
    """A reader of the state of a coordinator, from its metrics URL. Thread-safe."""

    def __init__(self, metrics_url: str) -> None:
        self._url = urljoin(metrics_url, PATH.removeprefix("/"))
        self._lock = threading.Lock()
        self._read_at_s = float("-inf")
        self._state: ServiceState | Unreadable = Unreadable("it was not polled yet")

    def poll(self) -> ServiceState | Unreadable:
        """Return the state, at most FRESH_S old, or the error."""
        with self._lock:
            if time.monotonic() - self._read_at_s > FRESH_S:
                try:
                    self._state = self._read()
                except Unreadable as error:
                    self._state = error
                self._read_at_s = time.monotonic()
            return self._state

    def _read(self) -> ServiceState:
        try:
            with (
                exchange(TIMEOUT_S, handlers=(urllib.request.ProxyHandler({}),)) as opener,
                opener.open(self._url) as response,
            ):
                found: bytes = response.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise Unreadable(f"it answers {error.code}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise Unreadable(str(reason) or type(error).__name__) from error
        return decoded(found)


def decoded(document: bytes) -> ServiceState:
    """Return the state in a JSON document. Raises Unreadable."""
    if len(document) > MAX_BYTES:
        raise Unreadable(f"its answer has more than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(document, type=ServiceState)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable("that address does not serve a coordinator's state") from error
