"""The histories of the groups that readers view, and their analyses, from which reports are built.

A history is read from the topic once, then extended with the entries of the fleet, the page's data of all
groups. An analysis of 100,000 entries takes seconds to read and compute. Meanwhile a reader gets the previous
analysis, or an analysis of the fleet's entries, which are of the last hour. When the new analysis is ready,
open pages reload.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cachetools import LRUCache

from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.page.fleet import MAX_ENTRIES, WINDOW_MS, Fleet
from kafka_why.why.history import History, HistoryUnavailable
from kafka_why.why.report import HistoryAnalysis, analyze

MAX_GROUPS = 32
"""Maximum number of groups with a cached history or analysis: the most recently viewed."""
MAX_CACHED_ENTRIES = 120_000
"""Maximum number of entries in all cached histories, about 1.8 kB each. The last history stays even if it
alone has more.
"""
# A history that was read longer ago is read again, because the fleet has only the entries of the last hour.
_FRESH_MS = WINDOW_MS // 2

Reader: TypeAlias = Callable[[str, int], History]
"""Reads the part of a group's history that a report on the time since `since_ms` needs, as
`kafka_why.why.history.read_history` does. The arguments are the group id and `since_ms`.
"""


@dataclass(frozen=True, slots=True)
class CachedHistory:
    """A history that was read from the topic, with later entries of the fleet."""

    history: History
    since_ms: int  # a report since this time needs no earlier entries
    at_ms: int  # when the history was read
    entries_version: int = 0  # version of the fleet's entries that it includes

    @property
    def entries(self) -> int:
        """The number of entries, by which the cache is bounded."""
        return len(self.history.entries)


def _cache(max_entries: int) -> LRUCache[str, Any]:
    """Return a cache of at most MAX_GROUPS and `max_entries`. It evicts the least recently viewed groups."""
    # Each group counts as at least this many entries, so that there are at most MAX_GROUPS.
    least_entries = max_entries // MAX_GROUPS
    return LRUCache(max_entries, lambda one: min(max(one.entries, least_entries), max_entries))


class Histories:
    """A cache of histories. Thread-safe.

    A cached history is extended with the fleet's later entries. If the same entry has one `seq` in the fleet
    and another one from `reader`, `can_extend` has to be False. Then nothing is cached.
    """

    def __init__(self, reader: Reader, fleet: Fleet, *, can_extend: bool = True) -> None:
        self._reader = reader
        self._can_extend = can_extend
        self._fleet = fleet
        self._lock = threading.Lock()
        self._by_group: LRUCache[str, CachedHistory] = _cache(MAX_CACHED_ENTRIES)

    def read(self, group_id: str, since_ms: int, now_ms: int) -> CachedHistory:
        """Return the entries that a report since `since_ms` needs, perhaps with duplicates.

        If the whole history has exceeded the topic's retention, the result has no entries. Raises
        HistoryUnavailable if the group is unknown, or KafkaError.
        """
        if not self._can_extend:
            version = self._fleet.entries_version(group_id)
            return CachedHistory(self._read_topic(group_id, since_ms), since_ms, now_ms, version)
        with self._lock:
            cached = self._by_group.get(group_id)
        if cached is not None and cached.since_ms <= since_ms and now_ms - cached.at_ms <= _FRESH_MS:
            extended = self._with_fleet_entries(group_id, cached)
            if extended is not None:
                return self._store(group_id, extended)
        read_now = CachedHistory(self._read_topic(group_id, since_ms), since_ms, now_ms)
        return self._store(group_id, self._with_fleet_entries(group_id, read_now) or read_now)

    def _read_topic(self, group_id: str, since_ms: int) -> History:
        """Read a history. It is empty if retention deleted all entries of a group that the fleet has."""
        try:
            return self._reader(group_id, since_ms)
        except HistoryUnavailable:
            facts = self._fleet.facts(group_id)
            if facts is None or (facts.view is None and not facts.entries):
                raise
            return History([], frozenset(), from_start=False, records_read=0)

    def _with_fleet_entries(self, group_id: str, cached: CachedHistory) -> CachedHistory | None:
        """Return the history with the fleet's later entries, or None if the fleet may have dropped some."""
        facts = self._fleet.facts(group_id)
        if facts is None:
            return cached
        later = _later_entries(cached.history.entries, facts.entries)
        if later is None:
            return None
        history = replace(cached.history, entries=[*cached.history.entries, *later])
        return replace(cached, history=history, entries_version=facts.entries_version)

    def _store(self, group_id: str, history: CachedHistory) -> CachedHistory:
        with self._lock:
            self._by_group[group_id] = history
        return history


def _later_entries(
    cached: Sequence[AnyHistoryEntry], of_fleet: Sequence[AnyHistoryEntry]
) -> Sequence[AnyHistoryEntry] | None:
    """Return the fleet's entries that are not in `cached`, or None if the fleet may have dropped some."""
    cached_ids = {(entry.incarnation, entry.seq) for entry in cached[-MAX_ENTRIES:]}
    later = [entry for entry in of_fleet if (entry.incarnation, entry.seq) not in cached_ids]
    # If a full fleet has no entry of `cached`, it may have dropped entries that come between the two.
    is_full = len(of_fleet) >= MAX_ENTRIES
    return None if is_full and len(later) == len(of_fleet) else later


MAX_ANALYSIS_ENTRIES = 500_000
"""Maximum number of entries in all cached analyses, about 0.6 kB each. The last analysis stays even if it
alone has more.
"""
MAX_BUILDING = 2
"""Maximum number of analyses that are built at the same time."""
PART_ENTRIES = 8_000
"""The number of newest entries that are shown first when a group is opened. The whole history follows."""
PATIENCE_S = 0.5
"""Maximum time a request waits for the whole history if the fleet has only its newest entries."""
WHOLE_AFTER_S = 1.0
"""Pause before the whole history is read, so that the browser gets the newest entries and its files first."""
MANY_ENTRIES = 2_000
"""If the fleet has at least this many entries, no request waits for the whole history."""
NEWEST_PATIENCE_S = 0.05
"""Maximum time a request waits for the newest entries if an analysis without them exists."""


@dataclass(frozen=True, slots=True)
class CachedAnalysis:
    """The analysis of a group's history from `since_ms` to `until_ms`."""

    analysis: HistoryAnalysis | None  # None for a group without an entry of Kafka's protocol
    rocketmq: list[RocketMqHistoryEntry]  # the entries, if the last one is of a RocketMQ group
    from_start: bool  # True if the history begins with the first entry that its topic retains
    since_ms: int
    until_ms: int
    entries_version: int  # of the fleet's entries in the analysis
    entries: int  # the number of analyzed entries
    is_whole: bool = True  # False if only the fleet's entries were analyzed
    ended_s: float = 0.0  # when the computation ended
    took_s: float = 0.0  # how long the computation took

    def covers(self, limits_ms: tuple[int, int]) -> bool:
        """Return True if the analysis covers the whole time range."""
        return self.is_whole and self.since_ms <= limits_ms[0] and limits_ms[1] <= self.until_ms

    def pause_s(self) -> float:
        """Return the seconds until the next computation may start.

        The computations for one group use at most a third of a CPU.
        """
        return self.ended_s + 2 * self.took_s - time.monotonic()


class Analyses:
    """A cache of analyses, which worker threads compute. Thread-safe."""

    def __init__(self, histories: Histories, fleet: Fleet) -> None:
        self._histories = histories
        self._fleet = fleet
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_BUILDING, thread_name_prefix="page-analyses")
        self._by_group: LRUCache[str, CachedAnalysis] = _cache(MAX_ANALYSIS_ENTRIES)
        self._builds: dict[tuple[str, int], Future[CachedAnalysis]] = {}  # by group id and `since_ms`
        self._awaiting_reload: set[str] = set()  # groups whose open pages reload when an analysis is ready

    def close(self) -> None:
        """Compute no more analyses."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def analysis(
        self, group_id: str, limits_ms: tuple[int, int], now_ms: int, *, is_patient: bool
    ) -> CachedAnalysis:
        """Return an analysis for a time range.

        If it lacks entries, open pages of the group reload when an analysis with them is ready. With
        `is_patient`, wait for an analysis that lacks at most the newest entries of the range. Raises
        HistoryUnavailable if the group is unknown, or KafkaError.
        """
        cached = self._cached_analysis(group_id)
        if cached is not None and cached.covers(limits_ms):
            return cached
        if cached is not None and cached.is_whole and cached.since_ms <= limits_ms[0]:
            return self._newest_analysis(group_id, cached, now_ms)
        if is_patient:
            return self._start_build(group_id, limits_ms[0], now_ms).result()
        return self._first_analysis(group_id, cached, limits_ms[0], now_ms)

    def has_newest(self, group_id: str, now_ms: int) -> bool:
        """Return True if a page of the group that is loaded now shows the newest entries.

        Otherwise have open pages of the group reload when an analysis with these entries is ready or may
        start.
        """
        cached = self._cached_analysis(group_id)
        if cached is None or not cached.is_whole:
            return True  # the whole analysis is being built, and pages reload when it is ready
        if cached.entries_version == self._fleet.entries_version(group_id):
            return True
        if (pause_s := cached.pause_s()) > 0:
            self._reload_after(group_id, pause_s)
        else:
            build = self._start_build(group_id, cached.since_ms, now_ms)
            self._wait_or_reload(group_id, build, patience_s=0)
        return False

    def _newest_analysis(self, group_id: str, cached: CachedAnalysis, now_ms: int) -> CachedAnalysis:
        """Return an analysis with the newest entries.

        If it may not start yet, takes longer than NEWEST_PATIENCE_S, or fails, return `cached` instead.
        """
        if cached.entries_version == self._fleet.entries_version(group_id):
            return cached
        if (pause_s := cached.pause_s()) > 0:
            self._reload_after(group_id, pause_s)
            return cached
        build = self._start_build(group_id, cached.since_ms, now_ms)
        self._wait_or_reload(group_id, build, NEWEST_PATIENCE_S)
        return build.result() if build.done() and build.exception() is None else cached

    def _first_analysis(
        self, group_id: str, cached: CachedAnalysis | None, since_ms: int, now_ms: int
    ) -> CachedAnalysis:
        """Start the analysis of the whole history. Return it or, if it takes long, one of fewer entries."""
        recent = None
        if cached is None and self._fleet.entry_count(group_id) >= MANY_ENTRIES:
            recent = self._analyze_fleet_entries(group_id, None)
        if recent is not None:
            self._start_later(group_id, since_ms, now_ms)  # at once, it would delay the page with `recent`
            return recent
        build = self._start_build(group_id, since_ms, now_ms)
        self._wait_or_reload(group_id, build, PATIENCE_S)
        if build.done():
            return build.result()
        has_whole = cached is not None and cached.is_whole
        fewer = cached if has_whole else self._analyze_fleet_entries(group_id, cached)
        return build.result() if fewer is None else fewer

    def _start_later(self, group_id: str, since_ms: int, now_ms: int) -> None:
        """Start the analysis after WHOLE_AFTER_S. Open pages reload when it is ready."""
        with self._lock:
            self._awaiting_reload.add(group_id)
        timer = threading.Timer(WHOLE_AFTER_S, self._start_unless_cached, [group_id, since_ms, now_ms])
        timer.daemon = True
        timer.start()

    def _start_unless_cached(self, group_id: str, since_ms: int, now_ms: int) -> None:
        cached = self._cached_analysis(group_id)
        if cached is None or not cached.is_whole or cached.since_ms > since_ms:
            with suppress(RuntimeError):  # it was closed meanwhile
                self._start_build(group_id, since_ms, now_ms)

    def _wait_or_reload(self, group_id: str, build: Future[CachedAnalysis], patience_s: float) -> None:
        """Wait for an analysis for at most `patience_s`. If it is ready later, open pages reload then."""
        wait([build], patience_s)
        if not build.done():
            with self._lock:
                self._awaiting_reload.add(group_id)
            if build.done():  # perhaps before the group was added
                self._reload_if_awaited(group_id)

    def _reload_after(self, group_id: str, pause_s: float) -> None:
        """Have open pages reload after a pause. Their requests then start the analysis."""
        with self._lock:
            if group_id in self._awaiting_reload:
                return
            self._awaiting_reload.add(group_id)
        timer = threading.Timer(pause_s, self._reload_if_awaited, [group_id])
        timer.daemon = True
        timer.start()

    def _reload_if_awaited(self, group_id: str) -> None:
        with self._lock:
            is_awaiting = group_id in self._awaiting_reload
            self._awaiting_reload.discard(group_id)
        if is_awaiting:
            self._fleet.reload_pages(group_id)

    def _cached_analysis(self, group_id: str) -> CachedAnalysis | None:
        with self._lock:
            return self._by_group.get(group_id)

    def _start_build(self, group_id: str, since_ms: int, now_ms: int) -> Future[CachedAnalysis]:
        """Start an analysis, or return the one under way if it begins at `since_ms` or earlier."""
        with self._lock:
            for (other_id, other_since_ms), build in self._builds.items():
                if other_id == group_id and other_since_ms <= since_ms:
                    return build
            build = self._threads.submit(self._build, group_id, since_ms, now_ms)
            self._builds[group_id, since_ms] = build
        build.add_done_callback(lambda _: self._on_built(group_id, since_ms))
        return build

    def _on_built(self, group_id: str, since_ms: int) -> None:
        with self._lock:
            del self._builds[group_id, since_ms]
        self._reload_if_awaited(group_id)

    def _build(self, group_id: str, since_ms: int, now_ms: int) -> CachedAnalysis:
        began_s = time.monotonic()
        cached = self._histories.read(group_id, since_ms, now_ms)
        history = cached.history
        kafka_entries = [entry for entry in history.entries if isinstance(entry, HistoryEntry)]
        is_rocketmq = bool(history.entries) and isinstance(history.entries[-1], RocketMqHistoryEntry)
        analysis = None
        if kafka_entries and not is_rocketmq:
            analysis = analyze(
                kafka_entries,
                unread=history.unread,
                from_start=history.from_start,
                telemetry=history.telemetry,
            )
        built = CachedAnalysis(
            analysis=analysis,
            rocketmq=[e for e in history.entries if is_rocketmq and isinstance(e, RocketMqHistoryEntry)],
            from_start=history.from_start,
            since_ms=cached.since_ms,
            until_ms=now_ms,
            entries_version=cached.entries_version,
            entries=len(kafka_entries),
            ended_s=time.monotonic(),
            took_s=time.monotonic() - began_s,
        )
        with self._lock:
            self._by_group[group_id] = built
        return built

    def _analyze_fleet_entries(self, group_id: str, cached: CachedAnalysis | None) -> CachedAnalysis | None:
        """Return the analysis of the fleet's newest entries, or None if the last is not of Kafka's protocol.

        `cached` is an earlier result, or None.
        """
        facts = self._fleet.facts(group_id)
        if facts is None or not facts.entries or not isinstance(facts.entries[-1], HistoryEntry):
            return None
        if cached is not None and cached.entries_version == facts.entries_version:
            return cached
        kafka_entries = [entry for entry in facts.entries[-PART_ENTRIES:] if isinstance(entry, HistoryEntry)]
        recent = CachedAnalysis(
            analysis=analyze(kafka_entries, from_start=False),
            rocketmq=[],
            from_start=False,
            since_ms=kafka_entries[0].at_ms,
            until_ms=kafka_entries[-1].at_ms,
            entries_version=facts.entries_version,
            entries=len(kafka_entries),
            is_whole=False,
        )
        with self._lock:
            if group_id not in self._by_group or not self._by_group[group_id].is_whole:
                self._by_group[group_id] = recent
        return recent
