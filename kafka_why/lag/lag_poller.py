"""Polls the brokers for the bounds of logs, and for the times of the records that a `LagBook` needs."""

import time
from collections.abc import Mapping
from functools import partial

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from kafka_why.lag.brokers import INTERVAL_S, TimestampSearch, log_bounds, records_at
from kafka_why.lag.definitions import Partition
from kafka_why.lag.lag_book import LagBook
from kafka_why.lifetimes import OutageWarning
from kafka_why.now import now_ms


class LagPoller:
    """A poller of the brokers for one LagBook, at most once in INTERVAL_S. For use by one thread."""

    def __init__(self, book: LagBook) -> None:
        self._book = book
        self._polled_at_s = float("-inf")
        self._search: TimestampSearch | None = None
        self._searched: dict[Partition, int] = {}  # the offsets of the search
        self._search_warning = OutageWarning("looking for the times of records")
        self._bounds_warning = OutageWarning("reading the ends of topics")

    def poll(self, admin: KafkaAdminClient) -> None:
        """Poll if INTERVAL_S has passed, and make one step of the search for times of records.

        Raises KafkaError. The caller can read topics between the steps. Brokers before Kafka 3.0 do not
        return the times of records. A warning is then logged, and lags in time are known only for records
        that arrived after the first poll.
        """
        if time.monotonic() - self._polled_at_s >= INTERVAL_S:
            with self._book.lock:
                topics = self._book.topics()
            bounds = log_bounds(admin, topics)
            with self._book.lock:
                # Use the time after the response, because a record's wait counts from the poll that saw it.
                self._book.add_bounds(bounds, now_ms())
                if self._search is None and (wanted := self._book.wanted_times()):
                    self._searched, self._search = wanted, TimestampSearch(wanted)
            self._polled_at_s = time.monotonic()
        if self._search is not None:
            self._step(admin, self._search)

    def poll_if_allowed(self, admin: KafkaAdminClient) -> None:
        """Poll, but log errors as warnings: only lags need the right to describe topics."""
        try:
            self.poll(admin)
            self._bounds_warning.worked()
        except KafkaError as error:
            self._bounds_warning.failed(error)

    def _step(self, admin: KafkaAdminClient, search: TimestampSearch) -> None:
        """Make one step of the search. If the search is over or fails, store its results."""
        lags_ms: Mapping[Partition, int] = {}
        try:
            is_over = search.step(partial(records_at, admin))
        except KafkaError as error:
            # One partition without a leader fails the whole search. `add_times` counts its partitions as
            # requested, so the next search takes others.
            self._search_warning.failed(error)
            is_over = True
        else:
            self._search_warning.worked()
            lags_ms = search.lags_ms
        if is_over:
            with self._book.lock:
                self._book.add_times(self._searched, lags_ms)
            self._search = None
