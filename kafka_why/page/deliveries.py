"""The deliveries of a share group, for its page and for `/api/deliveries`."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kafka_why.contract.telemetry import Counted
from kafka_why.page.address import RequestRefused, limits_ms, parameter
from kafka_why.why.deliveries.report import DeliveryReport, Interval
from kafka_why.why.deliveries.text import conclusion_lines, names_of, place_text
from kafka_why.wording import Names

CACHE_MS = 5_000
"""Lifetime of a cached report. A live page requests it often, and gateways write only once a minute."""
_GROUPS_MAX = 32
_ROWS_MAX = 500

ReadDeliveries = Callable[[str, int, int], DeliveryReport | None]


class DeliveriesView(Struct, frozen=True, kw_only=True):
    """The template's data."""

    report: DeliveryReport
    lines: list[tuple[str, str]]  # findings with labels
    rows: list[tuple[str, str, Counted]]  # with members' names
    rows_left_out: int
    intervals: list[Interval]  # the latest first


class DeliveriesCache:
    """A cache of reports on share groups' deliveries. Thread-safe."""

    def __init__(self, read: ReadDeliveries) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int, int], tuple[float, DeliveryReport | None]] = OrderedDict()

    def report(self, group_id: str, between_ms: tuple[int, int]) -> DeliveryReport | None:
        """Return the deliveries that gateways counted in a time range, or None. Raises KafkaError."""
        from_ms, to_ms = between_ms
        key = group_id, from_ms // CACHE_MS, to_ms // CACHE_MS
        now_s = time.monotonic()
        with self._lock:
            known = self._known.get(key)
        if known is not None and now_s - known[0] < CACHE_MS / 1000:
            return known[1]
        found = self._read(group_id, from_ms, to_ms)
        with self._lock:
            self._known[key] = now_s, found
            while len(self._known) > _GROUPS_MAX:
                self._known.popitem(last=False)
        return found

    def view(
        self, group_id: str, between_ms: tuple[int, int], names: Names | None = None
    ) -> DeliveriesView | None:
        """Return the report for the template, or None. `names` are the members' names on the group's page."""
        found = self.report(group_id, between_ms)
        if found is None:
            return None
        names = names or names_of(found)
        rows = [*found.rows, *([] if found.others is None else [found.others])]
        return DeliveriesView(
            report=found,
            lines=list(conclusion_lines(found, names)),
            rows=[(place_text(row), names.of(row.member_id), row) for row in rows[:_ROWS_MAX]],
            rows_left_out=len(rows[_ROWS_MAX:]),
            intervals=found.intervals[::-1],
        )


NO_DELIVERIES = DeliveriesCache(lambda group_id, from_ms, to_ms: None)


def routes(cache: DeliveriesCache, now_ms: Callable[[], int]) -> list[Route]:
    """Return the routes of the deliveries as JSON."""
    return [Route("/api/deliveries", partial(_json, cache, now_ms))]


def _json(cache: DeliveriesCache, now_ms: Callable[[], int], request: Request) -> Any:
    group_id = parameter(request, "id")
    found = cache.report(group_id, limits_ms(request, now_ms()))
    if found is None:
        raise RequestRefused(404, "no gateway counted deliveries of this group in this time")
    return Response(msgspec.json.encode(found), media_type="application/json")
