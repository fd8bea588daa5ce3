"""The deliveries of a share group, for its page and for `/api/deliveries`."""

import threading
from collections.abc import Callable, Hashable
from operator import attrgetter

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from kafka_why.contract.telemetry import Counted
from kafka_why.why.deliveries.report import DeliveryReport, Interval
from kafka_why.why.deliveries.text import conclusion_lines, names_of, place_text

CACHE_MS = 5_000
"""Lifetime of a cached report. A live page requests it often, and gateways write only once a minute."""
_GROUPS_MAX = 32
_ROWS_MAX = 500

ReadDeliveries = Callable[[str, int, int], DeliveryReport | None]
"""Reads the report on a group from one time in ms to another, or None if gateways counted no deliveries."""


class DeliveriesView(Struct, frozen=True, kw_only=True):
    """The data of the deliveries on a share group's page."""

    report: DeliveryReport
    lines: list[tuple[str, str]]  # findings with labels
    rows: list[tuple[str, str, Counted]]  # the row's place and its member's name, and the counts
    rows_left_out: int  # number of rows beyond the maximum
    intervals: list[Interval]  # the latest first


class DeliveriesCache:
    """A cache of reports on share groups' deliveries. Thread-safe."""

    def __init__(self, read: ReadDeliveries) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reports: TTLCache[Hashable, DeliveryReport | None] = TTLCache(_GROUPS_MAX, CACHE_MS / 1000)

    @cachedmethod(
        attrgetter("_reports"),
        key=lambda _, group_id, between_ms: (group_id, *(ms // CACHE_MS for ms in between_ms)),
        lock=attrgetter("_lock"),
    )
    def report(self, group_id: str, between_ms: tuple[int, int]) -> DeliveryReport | None:
        """Return the deliveries that gateways counted in a time range, or None. Raises KafkaError."""
        return self._read(group_id, *between_ms)

    def view(self, group_id: str, between_ms: tuple[int, int]) -> DeliveriesView | None:
        """Return the report for the template, or None if there is none. Raises KafkaError."""
        report = self.report(group_id, between_ms)
        if report is None:
            return None
        names = names_of(report)
        rows = [row for row in (*report.rows, report.others) if row is not None]
        return DeliveriesView(
            report=report,
            lines=list(conclusion_lines(report, names)),
            rows=[(place_text(row), names.of(row.member_id), row) for row in rows[:_ROWS_MAX]],
            rows_left_out=len(rows[_ROWS_MAX:]),
            intervals=report.intervals[::-1],
        )


NO_DELIVERIES = DeliveriesCache(lambda group_id, from_ms, to_ms: None)
