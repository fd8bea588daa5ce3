"""The state of a coordinator's process, which it serves as JSON next to its metrics (`/status`)."""

import math
import threading
import urllib.error
import urllib.request
from collections.abc import Hashable, Sequence
from http.client import HTTPException
from operator import attrgetter
from urllib.parse import urljoin

import msgspec
from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from kafka_why.connections.http_exchange import exchange
from kafka_why.contract.service import ReplicaState, ServiceStatus, TransactionsSummary
from kafka_why.wording import duration_text

STATUS_PATH = "/status"
FRESH_S = 2.0
"""The greatest age of a state that is returned without another request."""
TIMEOUT_S = 3.0
MAX_BYTES = 4 * 1024 * 1024
"""The maximum size of an answer."""


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
        """Return the smallest bound with at least this share of the values."""
        bounds = zip((*bounds_s, math.inf), cumulative, strict=True)
        bound_s = next(bound for bound, number_within in bounds if number_within >= share * number)
        return round(bound_s * 1000) if math.isfinite(bound_s) else None

    return Durations(round(number), round(sum_s * 1000 / number), bound_ms(0.5), bound_ms(0.99))


class BatchesState(Struct, frozen=True, kw_only=True):
    """The query's batches since the process started. A field is None until its first value is known."""

    last_ms: int | None  # duration of the last batch
    age_ms: int | None  # time since the end of the last batch
    durations: Durations | None
    time_lag_ms: int | None  # this machine's time minus the watermark
    rows_dropped: int  # number of late rows that the query dropped


class GatewayState(Struct, frozen=True):
    """The state of the gateway in the same process."""

    connections: int  # number of clients' open connections
    latencies: dict[str, Durations]  # of the gateway's responses to clients, by Kafka API
    answers: dict[str, Durations]  # of the coordinator's responses to the gateway, by type of request


class ServiceState(Struct, frozen=True, kw_only=True):
    """The state of the process. An observer has no replica, transactions or gateway."""

    status: ServiceStatus
    spark_restarts: int  # their number
    # Time since the last clock record of the ticker, which lets timers run on; None until the first one.
    ticker_age_ms: int | None
    backlog_records: int | None  # requests that the query has not processed; None until the first query
    batches: BatchesState
    replica: ReplicaState | None = None
    transactions: TransactionsSummary | None = None
    gateway: GatewayState | None = None


class Unreadable(Exception):
    """The error when the process does not answer, or the address is another server's."""


class StateReader:
    """A reader of the state of a coordinator, from its metrics URL. Thread-safe."""

    def __init__(self, metrics_url: str) -> None:
        self._url = urljoin(metrics_url, STATUS_PATH.removeprefix("/"))
        self._condition = threading.Condition()
        self._cache: TTLCache[Hashable, ServiceState | Unreadable] = TTLCache(1, FRESH_S)

    @cachedmethod(attrgetter("_cache"), condition=attrgetter("_condition"))  # one request at a time
    def poll(self) -> ServiceState | Unreadable:
        """Return the state, at most FRESH_S old, or the error."""
        try:
            return decoded(
                exchange(self._read_answer, TIMEOUT_S, handlers=(urllib.request.ProxyHandler({}),))
            )
        except Unreadable as error:
            return error
        except urllib.error.HTTPError as error:
            return Unreadable(f"it answers {error.code}")
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            return Unreadable(str(reason) or type(error).__name__)

    def _read_answer(self, opener: urllib.request.OpenerDirector) -> bytes:
        with opener.open(self._url) as response:
            return bytes(response.read(MAX_BYTES + 1))  # one byte more shows that the answer is too long


def decoded(document: bytes) -> ServiceState:
    """Return the state in a JSON document. Raises Unreadable."""
    if len(document) > MAX_BYTES:
        raise Unreadable(f"its answer has more than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(document, type=ServiceState)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable("that address does not serve a coordinator's state") from error
