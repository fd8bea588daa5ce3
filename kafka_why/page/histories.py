"""The histories of the groups that readers view, and their analyses, from which reports are built.

A history is read from the topic once, then extended with the fleet's entries. An analysis of 100,000 entries
takes seconds to read and compute. Meanwhile a reader gets the previous analysis, or one of the fleet's
entries of the last hour.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

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
_FRESH_MS = WINDOW_MS // 2

Reader: TypeAlias = Callable[[str, int], History]
"""Reads the part of a group's history that a report since a time needs. See
`kafka_why.why.history.read_history`.
"""


@dataclass(frozen=True, slots=True)
class CachedHistory:
    """A history that was read from the topic, with later entries of the fleet."""

    history: History
    since_ms: int  # it is sufficient for a report since this time
    at_ms: int  # when it was read
    entries_version: int = 0  # of the fleet's entries in it

    @property
    def entries(self) -> int:
        return len(self.history.entries)


K = TypeVar("K", "CachedHistory", "CachedAnalysis")


def _cache(known: OrderedDict[str, K], group_id: str, value: K, max_entries: int) -> None:
    """Cache `value` for a group. Evict the least recently viewed groups above MAX_GROUPS or `max_entries`."""
    known[group_id] = value
    known.move_to_end(group_id)
    while len(known) > 1 and (
        len(known) > MAX_GROUPS or sum(one.entries for one in known.values()) > max_entries
    ):
        known.popitem(last=False)


class Histories:
    """A cache of histories. Thread-safe.

    A cached history is extended with the fleet's later entries. If the fleet identifies entries differently
    than the reader, `continues` is False and nothing is cached.
    """

    def __init__(self, reader: Reader, fleet: Fleet, *, continues: bool = True) -> None:
        self._reader = reader
        self._continues = continues
        self._fleet = fleet
        self._lock = threading.Lock()
        self._known: OrderedDict[str, CachedHistory] = OrderedDict()

    def read(self, group_id: str, since_ms: int, now_ms: int) -> CachedHistory:
        """Return the entries that a report since `since_ms` needs, perhaps with duplicates.

        There are none for a group whose whole history has exceeded the topic's retention. Raises
        HistoryUnavailable if the group is unknown, or KafkaError.
        """
        if not self._continues:
            version = self._fleet.entries_version(group_id)
            return CachedHistory(self._from_topic(group_id, since_ms), since_ms, now_ms, version)
        with self._lock:
            known = self._known.get(group_id)
        if known is not None and known.since_ms <= since_ms and now_ms - known.at_ms <= _FRESH_MS:
            continued = self._continued(group_id, known)
            if continued is not None:
                return self._keep(group_id, continued)
        read = CachedHistory(self._from_topic(group_id, since_ms), since_ms, now_ms)
        return self._keep(group_id, self._continued(group_id, read) or read)

    def _from_topic(self, group_id: str, since_ms: int) -> History:
        try:
            return self._reader(group_id, since_ms)
        except HistoryUnavailable:
            facts = self._fleet.facts(group_id)
            if facts is None or (facts.view is None and not facts.entries):
                raise
            return History([], frozenset(), from_start=False, records_read=0)

    def _continued(self, group_id: str, read: CachedHistory) -> CachedHistory | None:
        """Return the history with the fleet's later entries, or None if the fleet has lost some of them."""
        facts = self._fleet.facts(group_id)
        if facts is None:
            return read
        later = _later(read.history.entries, facts.entries)
        if later is None:
            return None
        entries = [*read.history.entries, *later]
        return replace(
            read, history=replace(read.history, entries=entries), entries_version=facts.entries_version
        )

    def _keep(self, group_id: str, read: CachedHistory) -> CachedHistory:
        with self._lock:
            _cache(self._known, group_id, read, MAX_CACHED_ENTRIES)
        return read


def _later(
    known: Sequence[AnyHistoryEntry], of_fleet: Sequence[AnyHistoryEntry]
) -> Sequence[AnyHistoryEntry] | None:
    """Return the fleet's entries that are not known, or None if some in between may be lost."""
    names = {(entry.incarnation, entry.seq) for entry in known[-MAX_ENTRIES:]}
    later = [entry for entry in of_fleet if (entry.incarnation, entry.seq) not in names]
    return None if len(later) == len(of_fleet) >= MAX_ENTRIES else later


# Analyses of histories, rebuilt in the background when entries arrive.

MAX_ANALYSIS_ENTRIES = 500_000
"""Maximum number of entries in all cached analyses, about 0.6 kB each. The last analysis stays even if it
alone has more.
"""
MAX_BUILDING = 2
"""Analyses that are built at the same time. A later request waits, or gets an older analysis."""
PART_ENTRIES = 8_000
"""The newest entries, which are shown first when a group is opened. The whole history follows."""
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
    from_start: bool  # the history begins with the first retained entry
    since_ms: int
    until_ms: int
    entries_version: int  # of the fleet's entries in it
    entries: int  # their number
    is_whole: bool = True  # it was read from the topic
    ended_s: float = 0.0
    took_s: float = 0.0

    def has(self, limits_ms: tuple[int, int]) -> bool:
        """Return True if the analysis covers the whole time range."""
        return self.is_whole and self.since_ms <= limits_ms[0] and limits_ms[1] <= self.until_ms

    def pause_s(self) -> float:
        """Return the seconds until the next computation, so that these use at most a third of a CPU."""
        return self.ended_s + 2 * self.took_s - time.monotonic()


class Analyses:
    """A cache of analyses, which worker threads compute. Thread-safe."""

    def __init__(self, histories: Histories, fleet: Fleet) -> None:
        self._histories = histories
        self._fleet = fleet
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_BUILDING, thread_name_prefix="page-analyses")
        self._known: OrderedDict[str, CachedAnalysis] = OrderedDict()
        self._building: dict[tuple[str, int], Future[CachedAnalysis]] = {}
        self._awaited: set[str] = set()

    def close(self) -> None:
        """Compute no more analyses."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def analysis(
        self, group_id: str, limits_ms: tuple[int, int], now_ms: int, *, is_patient: bool
    ) -> CachedAnalysis:
        """Return an analysis for a time range.

        It may lack entries: the fleet touches the group when it has them. With `is_patient`, wait until only
        the newest entries of the range are missing. Raises HistoryUnavailable if the group is unknown, or
        KafkaError.
        """
        known = self._look_up(group_id)
        if known is not None and known.has(limits_ms):
            return known
        if known is not None and known.is_whole and known.since_ms <= limits_ms[0]:
            return self._newest(group_id, known, now_ms)
        if is_patient:
            return self._start(group_id, limits_ms[0], now_ms).result()
        return self._whole_or_part(group_id, known, limits_ms[0], now_ms)

    def has_newest(self, group_id: str, now_ms: int) -> bool:
        """Return True if the group's page would show its newest entries.

        If not, the fleet touches the group later.
        """
        known = self._look_up(group_id)
        if known is None or not known.is_whole:
            return True  # the whole analysis is being built, and touches the group when it is ready
        if known.entries_version == self._fleet.entries_version(group_id):
            return True
        if (pause_s := known.pause_s()) > 0:
            self._touch_after(group_id, pause_s)
        else:
            self._wait(group_id, self._start(group_id, known.since_ms, now_ms), 0)
        return False

    def _newest(self, group_id: str, known: CachedAnalysis, now_ms: int) -> CachedAnalysis:
        """Return an analysis with the newest entries, or `known` if that is too early, too slow, or fails."""
        if known.entries_version == self._fleet.entries_version(group_id):
            return known
        if (pause_s := known.pause_s()) > 0:
            self._touch_after(group_id, pause_s)
            return known
        building = self._start(group_id, known.since_ms, now_ms)
        self._wait(group_id, building, NEWEST_PATIENCE_S)
        return building.result() if building.done() and building.exception() is None else known

    def _whole_or_part(
        self, group_id: str, known: CachedAnalysis | None, since_ms: int, now_ms: int
    ) -> CachedAnalysis:
        part = None
        if known is None and self._fleet.entry_count(group_id) >= MANY_ENTRIES:
            part = self._from_fleet(group_id, None)
        if part is not None:
            self._start_later(group_id, since_ms, now_ms)  # because both at once would take long
            return part
        building = self._start(group_id, since_ms, now_ms)
        self._wait(group_id, building, PATIENCE_S)
        if building.done():
            return building.result()
        part = known if known is not None and known.is_whole else self._from_fleet(group_id, known)
        return building.result() if part is None else part

    def _start_later(self, group_id: str, since_ms: int, now_ms: int) -> None:
        with self._lock:
            self._awaited.add(group_id)
        timer = threading.Timer(WHOLE_AFTER_S, self._start_unless_cached, [group_id, since_ms, now_ms])
        timer.daemon = True
        timer.start()

    def _start_unless_cached(self, group_id: str, since_ms: int, now_ms: int) -> None:
        known = self._look_up(group_id)
        if known is None or not known.is_whole or known.since_ms > since_ms:
            with suppress(RuntimeError):  # it was closed meanwhile
                self._start(group_id, since_ms, now_ms)

    def _wait(self, group_id: str, building: Future[CachedAnalysis], patience_s: float) -> None:
        """Wait for an analysis. If it is late, it touches the group when it is ready."""
        wait([building], patience_s)
        if not building.done():
            with self._lock:
                self._awaited.add(group_id)
            if building.done():  # since the check above
                self._touch_awaited(group_id)

    def _touch_after(self, group_id: str, pause_s: float) -> None:
        with self._lock:
            if group_id in self._awaited:
                return
            self._awaited.add(group_id)
        timer = threading.Timer(pause_s, self._touch_awaited, [group_id])
        timer.daemon = True
        timer.start()

    def _touch_awaited(self, group_id: str) -> None:
        with self._lock:
            is_awaited = group_id in self._awaited
            self._awaited.discard(group_id)
        if is_awaited:
            self._fleet.touch(group_id)

    def _look_up(self, group_id: str) -> CachedAnalysis | None:
        with self._lock:
            known = self._known.get(group_id)
            if known is not None:
                self._known.move_to_end(group_id)
            return known

    def _keep(self, group_id: str, made: CachedAnalysis) -> CachedAnalysis:
        with self._lock:
            _cache(self._known, group_id, made, MAX_ANALYSIS_ENTRIES)
        return made

    def _start(self, group_id: str, since_ms: int, now_ms: int) -> Future[CachedAnalysis]:
        """Start an analysis, unless one that begins as early is being computed."""
        with self._lock:
            for (other_id, other_ms), building in self._building.items():
                if other_id == group_id and other_ms <= since_ms:
                    return building
            building = self._threads.submit(self._build, group_id, since_ms, now_ms)
            self._building[group_id, since_ms] = building
        building.add_done_callback(lambda _: self._built(group_id, since_ms))
        return building

    def _built(self, group_id: str, since_ms: int) -> None:
        with self._lock:
            del self._building[group_id, since_ms]
        self._touch_awaited(group_id)

    def _build(self, group_id: str, since_ms: int, now_ms: int) -> CachedAnalysis:
        began_s = time.monotonic()
        read = self._histories.read(group_id, since_ms, now_ms)
        history = read.history
        ours = [entry for entry in history.entries if isinstance(entry, HistoryEntry)]
        rocketmq: list[RocketMqHistoryEntry] = []
        if history.entries and isinstance(history.entries[-1], RocketMqHistoryEntry):
            rocketmq = [entry for entry in history.entries if isinstance(entry, RocketMqHistoryEntry)]
        analysis = None
        if ours and not rocketmq:
            analysis = analyze(
                ours,
                unread=history.unread,
                from_start=history.from_start,
                telemetry=history.telemetry,
            )
        made = CachedAnalysis(
            analysis,
            rocketmq,
            history.from_start,
            read.since_ms,
            now_ms,
            read.entries_version,
            len(ours),
            ended_s=time.monotonic(),
            took_s=time.monotonic() - began_s,
        )
        return self._keep(group_id, made)

    def _from_fleet(self, group_id: str, known: CachedAnalysis | None) -> CachedAnalysis | None:
        """Return the analysis of the fleet's entries of the last hour, or None without a Kafka entry."""
        facts = self._fleet.facts(group_id)
        if facts is None or not facts.entries or not isinstance(facts.entries[-1], HistoryEntry):
            return None
        if known is not None and known.entries_version == facts.entries_version:
            return known
        ours = [entry for entry in facts.entries[-PART_ENTRIES:] if isinstance(entry, HistoryEntry)]
        analysis = analyze(ours, from_start=False)
        first_ms, last_ms = ours[0].at_ms, ours[-1].at_ms
        part = CachedAnalysis(
            analysis, [], False, first_ms, last_ms, facts.entries_version, len(ours), is_whole=False
        )
        with self._lock:
            if group_id not in self._known or not self._known[group_id].is_whole:
                self._known[group_id] = part
        return part
