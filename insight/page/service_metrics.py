"""What a coordinator's process says of itself: its metrics and its `/readyz`, read when somebody looks."""

import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from connections.http_exchange import exchange
from insight.why.clock import duration_text

OWN = "group_coordinator"
"""The prefix of `insight.metrics.collector`, whose import would load Spark."""
FRESH_S = 2.0
"""What was read is shown again for so long."""
TIMEOUT_S = 3.0
MAX_BYTES = 4 * 1024 * 1024
MAX_TEXT_CHARS = 500
_GAUGES = (
    "phase",
    "alarm",
    "last_batch_id",
    "last_batch_duration_seconds",
    "last_batch_age_seconds",
    "event_time_lag_seconds",
    "ticker_age_seconds",
    "backlog_records",
    "spark_restarts_total",
    "rows_dropped_by_watermark_total",
    "replica_phase",
    "replica_lag_records",
    "replica_lag_seconds",
    "replica_lead_seconds",
    "replica_answers_total",
    "replica_compared_total",
    "replica_differences_total",
    "replica_seedings_total",
    "transactions_pending",
    "transactions_oldest_age_seconds",
    "gateway_connections",
)
_HISTOGRAMS = (
    "batch_duration_seconds",
    "gateway_request_duration_seconds",
    "gateway_coordinator_duration_seconds",
)
_NAMES = (
    *_GAUGES,
    *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum", "count")),
)

_Series = dict[str, list[tuple[Mapping[str, str], float]]]


class Durations(Struct, frozen=True):
    """How long something took since the process began: how often, the mean, and the bounds that half and
    99 % of it did not exceed. A bound is None if it is above the largest one of the histogram.
    """

    number: int
    mean_ms: int
    half_ms: int | None
    most_ms: int | None

    @property
    def text(self) -> str:
        """`half within 250 ms, 99 % within 1.5 s, mean 310 ms`."""
        half, most = (
            "beyond what is measured" if ms is None else f"within {duration_text(ms)}"
            for ms in (self.half_ms, self.most_ms)
        )
        return f"half {half}, 99 % {most}, mean {duration_text(self.mean_ms)}"


class ServiceState(Struct, frozen=True, kw_only=True):
    """What the process says. None is what it does not publish, or does not know yet.

    `notes` are the texts of `/readyz` by check, also of failed checks. `latencies` are the latencies of the
    gateway in the same process by Kafka's API, `answers` the coordinator's latencies as that gateway sees
    them, by request.
    """

    phase: str | None
    alarm: bool | None
    batch_id: int | None
    batch_ms: int | None
    batch_age_ms: int | None
    batches: Durations | None
    time_lag_ms: int | None
    ticker_age_ms: int | None
    backlog_records: int | None
    spark_restarts: int | None
    rows_dropped: int | None
    replica: str | None
    replica_lag_records: int | None
    replica_lag_ms: int | None
    replica_lead_ms: int | None
    replica_answers: int | None
    replica_compared: int | None
    replica_differences: int | None
    replica_seedings: int | None
    transactions: int | None
    transactions_oldest_ms: int | None
    connections: int | None
    latencies: dict[str, Durations]
    answers: dict[str, Durations]
    notes: dict[str, str]


class Unreadable(Exception):
    """The process does not answer, or something else does. The message says why."""


class ServiceMetrics:
    """Reads the metrics of a coordinator at this URL. For several threads, of which one reads at a time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._read_at_s = float("-inf")
        self._state: ServiceState | Unreadable = Unreadable("it was not asked yet")

    def asked(self) -> ServiceState | Unreadable:
        """What the process says now, or said FRESH_S ago at most, or why that is not known."""
        with self._lock:
            if time.monotonic() - self._read_at_s > FRESH_S:
                try:
                    self._state = self._read()
                except Unreadable as error:
                    self._state = error
                self._read_at_s = time.monotonic()
            return self._state

    def _read(self) -> ServiceState:
        base = urlsplit(self.url)
        named = "&".join(f"name[]={quote(f'{OWN}_{name}')}" for name in _NAMES)
        ready = base._replace(path=f"{base.path.rpartition('/')[0]}/readyz", query="")
        return service_state(self._get(urlunsplit(base._replace(query=named))), self._get(urlunsplit(ready)))

    def _get(self, url: str) -> bytes:
        try:
            found = _read_within(url)
        except urllib.error.HTTPError as error:
            raise Unreadable(f"it answers {error.code}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise Unreadable(str(reason) or type(error).__name__) from error
        if len(found) > MAX_BYTES:
            raise Unreadable(f"its answer has more than {MAX_BYTES} bytes")
        return found


def _read_within(url: str) -> bytes:
    """Raises HTTPError, OSError, HTTPException and ValueError."""
    with exchange(TIMEOUT_S, handlers=(urllib.request.ProxyHandler({}),)) as opener:
        try:
            with opener.open(url) as response:
                found: bytes = response.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            if error.code != 503:  # /readyz says so what fails
                raise
            found = error.read(MAX_BYTES + 1)
    return found


def service_state(metrics: bytes, ready: bytes) -> ServiceState:
    """Return what a scrape and an answer of `/readyz` say. Raises Unreadable."""
    series = _series(metrics)
    if f"{OWN}_phase" not in series:
        raise Unreadable("that address does not serve a coordinator's metrics")
    read = _Reading(series)
    return ServiceState(
        phase=read.one_of("phase"),
        alarm=None if (alarm := read.number("alarm")) is None else bool(alarm),
        batch_id=None if (batch_id := read.number("last_batch_id")) == -1 else batch_id,
        batch_ms=read.ms("last_batch_duration_seconds"),
        batch_age_ms=read.ms("last_batch_age_seconds"),
        batches=read.durations("batch_duration_seconds").get(""),
        time_lag_ms=read.ms("event_time_lag_seconds"),
        ticker_age_ms=read.ms("ticker_age_seconds"),
        backlog_records=read.number("backlog_records"),
        spark_restarts=read.number("spark_restarts_total"),
        rows_dropped=read.number("rows_dropped_by_watermark_total"),
        replica=read.one_of("replica_phase"),
        replica_lag_records=read.number("replica_lag_records"),
        replica_lag_ms=read.ms("replica_lag_seconds"),
        replica_lead_ms=read.ms("replica_lead_seconds"),
        replica_answers=read.number("replica_answers_total"),
        replica_compared=read.number("replica_compared_total"),
        replica_differences=read.number("replica_differences_total"),
        replica_seedings=read.number("replica_seedings_total"),
        transactions=read.number("transactions_pending"),
        transactions_oldest_ms=read.ms("transactions_oldest_age_seconds"),
        connections=read.number("gateway_connections"),
        latencies=read.durations("gateway_request_duration_seconds", "api"),
        answers=read.durations("gateway_coordinator_duration_seconds", "request"),
        notes=_notes(ready),
    )


def _series(metrics: bytes) -> _Series:
    found: _Series = {}
    try:
        for family in text_string_to_metric_families(metrics.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    except Exception as error:
        raise Unreadable("that address does not serve text in Prometheus' format") from error
    return found


class _Reading(NamedTuple):
    """Reads numbers by their names without the prefix. What is not there, or is NaN, is None."""

    series: _Series

    def value(self, name: str) -> float | None:
        values = [value for _, value in self.series.get(f"{OWN}_{name}", []) if math.isfinite(value)]
        return sum(values) if values else None

    def number(self, name: str) -> int | None:
        value = self.value(name)
        return None if value is None else round(value)

    def ms(self, name: str) -> int | None:
        value = self.value(name)
        return None if value is None else max(round(value * 1000), 0)

    def one_of(self, name: str) -> str | None:
        """The value of the label, which has the metric's name, of the series that is 1."""
        label = name.rpartition("_")[2]
        found = self.series.get(f"{OWN}_{name}", [])
        return next((labels.get(label) for labels, value in found if value == 1), None)

    def durations(self, name: str, label: str = "") -> dict[str, Durations]:
        """The histograms that have counted something, by the value of a label."""
        buckets: dict[str, list[tuple[float, float]]] = {}
        for labels, value in self.series.get(f"{OWN}_{name}_bucket", []):
            buckets.setdefault(labels.get(label, ""), []).append((float(labels.get("le", "nan")), value))
        sums = self.series.get(f"{OWN}_{name}_sum", [])
        seconds = {labels.get(label, ""): value for labels, value in sums}
        return {
            of[:MAX_TEXT_CHARS]: _durations(sorted(counted), seconds.get(of, 0.0))
            for of, counted in sorted(buckets.items())
            if max(counted)[1] > 0
        }


def _durations(buckets: list[tuple[float, float]], seconds: float) -> Durations:
    number = buckets[-1][1]

    def bound_ms(share: float) -> int | None:
        bound = next(at for at, counted in buckets if counted >= share * number)
        return round(bound * 1000) if math.isfinite(bound) else None

    return Durations(round(number), round(seconds * 1000 / number), bound_ms(0.5), bound_ms(0.99))


def _notes(ready: bytes) -> dict[str, str]:
    """The texts of an answer of `/readyz`, {} if it is none."""
    try:
        found = json.loads(ready)
    except (ValueError, RecursionError):
        return {}
    return dict(_texts(found)) if isinstance(found, dict) else {}


def _texts(found: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for part in ("checks", "notes"):
        texts = found.get(part)
        for name, text in texts.items() if isinstance(texts, dict) else ():
            if isinstance(text, str) and text != "ok":
                yield name, text[:MAX_TEXT_CHARS]
