"""Computes the lag of all groups from their committed offsets and from the logs' bounds over time. The
coordinator is not needed: the input is the records of the offsets topic and the brokers' responses.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafka_why.contract.codec import decode_offset, decode_offset_key
from kafka_why.lag.brokers import INTERVAL_S
from kafka_why.lag.definitions import (
    STEPS,
    WINDOW_MS,
    LogBounds,
    Partition,
    PartitionLag,
    lag_ms,
    lag_records,
    next_offset,
    rises,
)

MAX_SAMPLES = 64
COARSENESS = 3
"""The greater this number, the closer together are the samples that remain: their distance is at most their
age divided by it.
"""
FORGET_MS = 300_000
"""A partition whose end has been unknown for this time is forgotten. A change of leader takes seconds."""


class TimedRecord(NamedTuple):
    """The offset of a record, and a time in ms at which the record was in the log."""

    offset: int
    ms: int


class LogHistory:
    """A history of the bounds of logs, sampled every few seconds. For use by one thread at a time.

    A partition has at most MAX_SAMPLES samples. Old samples are further apart.
    """

    def __init__(self) -> None:
        self._samples: dict[Partition, _Samples] = {}

    def add(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Add the bounds of all partitions at `at_ms`. Forget partitions that are missing for FORGET_MS."""
        for partition in self._samples.keys() - bounds.keys():
            if at_ms - self._samples[partition].last_ms[-1] >= FORGET_MS:
                del self._samples[partition]
        for partition, log in bounds.items():
            samples = self._samples.get(partition)
            if samples is None or log.latest < samples.ends[-1]:  # new, or the topic was created again
                samples = self._samples[partition] = _Samples()
            samples.earliest = log.earliest
            samples.add(log.latest, at_ms)

    def bounds(self, partition: Partition) -> LogBounds | None:
        """Return the last known bounds, or None if they are unknown."""
        samples = self._samples.get(partition)
        return None if samples is None else LogBounds(samples.earliest, samples.ends[-1])

    def arrival(self, partition: Partition, offset: int) -> tuple[TimedRecord | None, TimedRecord] | None:
        """Return the samples before and after the arrival of the record at `offset`, or None.

        It is None if no sample has the record. The first sample is None if the record arrived before all
        samples.
        """
        samples = self._samples.get(partition)
        place = 0 if samples is None else bisect_right(samples.ends, offset)
        if samples is None or place == len(samples.ends):
            return None
        before = TimedRecord(samples.ends[place - 1] - 1, samples.last_ms[place - 1]) if place else None
        return before, TimedRecord(samples.ends[place] - 1, samples.first_ms[place])

    def newest_ms(self, partition: Partition) -> int | None:
        """Return the time of the first sample with the newest record, or None if the partition is unknown."""
        samples = self._samples.get(partition)
        return None if samples is None else samples.first_ms[-1]

    def grew_ms(self, partition: Partition, since_ms: int) -> int | None:
        """Return the time of the first sample with a record that arrived after `since_ms`, or None."""
        samples = self._samples.get(partition)
        if samples is None:
            return None
        place = bisect_left(samples.last_ms, since_ms) + 1
        return samples.first_ms[place] if place < len(samples.ends) else None


class _Samples:
    """The end offsets of one log, ascending, and the first and the last time of each.

    They are in arrays, because there may be 100,000 partitions.
    """

    __slots__ = ("earliest", "ends", "first_ms", "last_ms")

    def __init__(self) -> None:
        self.earliest = 0
        self.ends, self.first_ms, self.last_ms = array("q"), array("q"), array("q")

    def add(self, end: int, at_ms: int) -> None:
        if self.ends and end == self.ends[-1]:
            self.last_ms[-1] = at_ms
            return
        self.ends.append(end)
        self.first_ms.append(at_ms)
        self.last_ms.append(at_ms)
        if len(self.ends) > MAX_SAMPLES:
            self._thin(at_ms)

    def _thin(self, now_ms: int) -> None:
        """Drop samples whose neighbours are close to each other, relative to their age."""
        kept = [len(self.ends) - 1]
        for place in range(len(self.ends) - 2, 0, -1):
            younger_ms = self.first_ms[kept[-1]]
            if (younger_ms - self.last_ms[place - 1]) * COARSENESS > now_ms - younger_ms:
                kept.append(place)
        kept = [*kept, 0][:MAX_SAMPLES]
        for name in ("ends", "first_ms", "last_ms"):
            values = getattr(self, name)
            setattr(self, name, array("q", (values[place] for place in reversed(kept))))


STEP_MS = WINDOW_MS // STEPS


class Trend:
    """The trend of a lag in records, sampled every few seconds. For use by one thread at a time.

    The lags are in arrays, because there may be 100,000 partitions.
    """

    __slots__ = ("_highs", "_lows", "_step")

    def __init__(self) -> None:
        self._step = 0
        self._lows, self._highs = array("q"), array("q")

    def add(self, records: int, at_ms: int) -> None:
        """Add the lag at `at_ms`."""
        step = at_ms // STEP_MS
        if self._lows and step == self._step:
            self._lows[-1] = min(self._lows[-1], records)
            self._highs[-1] = max(self._highs[-1], records)
            return
        # A step had no sample, because no broker answered.
        if step != self._step + 1:
            self._lows, self._highs = array("q"), array("q")
        self._step = step
        for lags in (self._lows, self._highs):
            lags.append(records)
            del lags[:-STEPS]

    @property
    def rises(self) -> bool:
        """True if the window is full and the lag rises over it."""
        return rises(self._lows, self._highs)


EXACT_MS = int(INTERVAL_S * 1500)
"""The time of a record is exact if the polls before and after its arrival are at most this far apart."""
MAX_LOOK_UPS = 20
"""The maximum number of partitions for which one poll requests times of records."""


@dataclass(slots=True)
class _Commit:
    """A committed offset."""

    offset: int
    at_ms: int
    stands_since_ms: int
    arrival_offset: int = -1
    arrival_ms: int = 0  # time of the record at `arrival_offset`, by a poll or a timestamp
    requested_at: int = 0  # number of the poll that last requested this time
    is_rough: bool = False  # `arrival_ms` is relative to a newest record whose own time is not exact
    trend: Trend | None = None


@dataclass(frozen=True, slots=True)
class _TimeRequest:
    """A request for the time of the record at `offset`, with the state at that time."""

    commit: _Commit
    committed: int  # the committed offset
    offset: int
    newest_ms: int
    is_rough: bool


class LagBook:
    """The committed offsets of all groups and the bounds of the logs. For use by one thread at a time."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Partition, _Commit]] = {}
        self._logs = LogHistory()
        self._requests: dict[Partition, _TimeRequest] = {}
        self._polls = 0
        self._behind: set[str] = set()

    def apply_commit(self, key: bytes, value: bytes | None) -> str:
        """Apply a record of the offsets topic, and return its group id. Raises one of UNREADABLE."""
        group_id, topic, number = decode_offset_key(key)
        partition = (topic, number)
        if value is None:
            commits = self._groups.get(group_id, {})
            commits.pop(partition, None)
            if not commits:
                self._groups.pop(group_id, None)
            return group_id
        committed = decode_offset(value)
        self._set_commit(group_id, partition, committed.offset, committed.committed_at_ms)
        return group_id

    def set_commits(self, group_id: str, commits: Mapping[Partition, tuple[int, int]]) -> None:
        """Replace all committed offsets of a group."""
        for partition in self._groups.get(group_id, {}).keys() - commits.keys():
            del self._groups[group_id][partition]
        # A commit is an offset, and the time of the commit.
        for partition, (offset, at_ms) in commits.items():
            self._set_commit(group_id, partition, offset, at_ms)
        if not commits:
            self._groups.pop(group_id, None)

    def _set_commit(self, group_id: str, partition: Partition, offset: int, at_ms: int) -> None:
        commits = self._groups.setdefault(group_id, {})
        known = commits.get(partition)
        if known is None:
            commits[partition] = _Commit(offset, at_ms, at_ms)
            return
        if offset != known.offset:
            known.stands_since_ms = at_ms
        if offset < known.offset:
            known.arrival_offset = -1
        known.offset, known.at_ms = offset, at_ms

    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Add the bounds of the logs at `at_ms`, and update trends and arrival times."""
        self._logs.add(bounds, at_ms)
        self._polls += 1
        self._behind = set()
        for group_id, commits in self._groups.items():
            for partition, commit in commits.items():
                log = bounds.get(partition)
                records = 0 if log is None else lag_records(commit.offset, log)
                if records:
                    self._behind.add(group_id)
                if records and commit.trend is None:
                    commit.trend = Trend()
                if commit.trend is not None and log is not None:
                    commit.trend.add(records, at_ms)
                if records and log is not None:
                    self._store_arrival(partition, commit, next_offset(commit.offset, log))

    def _store_arrival(self, partition: Partition, commit: _Commit, offset: int) -> None:
        if commit.arrival_offset == offset and not commit.is_rough:
            return
        # Exact now: the samples around it are dropped later.
        arrival = self._logs.arrival(partition, offset)
        if arrival is not None and _is_exact(*arrival):
            commit.arrival_offset, commit.arrival_ms, commit.is_rough = offset, arrival[1].ms, False

    def topics(self) -> set[str]:
        """Return the topics with a committed offset."""
        return {topic for commits in self._groups.values() for topic, _ in commits}

    def groups_behind(self) -> list[str]:
        """Return the groups that had records to consume at the last poll."""
        return [group_id for group_id in self._behind if group_id in self._groups]

    def offset_count(self) -> int:
        return sum(map(len, self._groups.values()))

    def has_offsets(self, group_id: str) -> bool:
        """Return True if a group has a committed offset."""
        return group_id in self._groups

    def wanted_times(self) -> dict[Partition, int]:
        """Return offsets whose record times are not exact. Pass the result to `add_times`.

        There are at most MAX_LOOK_UPS, the least recently requested first.
        """
        found: dict[Partition, tuple[_Commit, int]] = {}
        for commits in self._groups.values():
            for partition, commit in commits.items():
                offset = self._next_inexact(partition, commit)
                if offset is not None and (
                    partition not in found or commit.requested_at < found[partition][0].requested_at
                ):
                    found[partition] = (commit, offset)
        oldest = sorted(found, key=lambda partition: found[partition][0].requested_at)[:MAX_LOOK_UPS]
        self._requests = {partition: self._time_request(partition, *found[partition]) for partition in oldest}
        return {partition: found[partition][1] for partition in oldest}

    def _time_request(self, partition: Partition, commit: _Commit, offset: int) -> _TimeRequest:
        newest_ms, log = self._logs.newest_ms(partition), self._logs.bounds(partition)
        assert newest_ms is not None and log is not None, "the offset is behind the log's end"
        return _TimeRequest(
            commit, commit.offset, offset, newest_ms, is_rough=not self._is_newest_exact(partition, log)
        )

    def add_times(self, wanted: Mapping[Partition, int], lags_ms: Mapping[Partition, int]) -> None:
        """Store the brokers' lags in ms for `wanted`, a result of `wanted_times`. Unknown lags are omitted.

        A lag is too long if the group has committed a later offset meanwhile. The next result corrects it.
        """
        for partition in wanted.keys() & self._requests.keys():
            request = self._requests.pop(partition)
            commit = request.commit
            commit.requested_at = self._polls
            is_older = request.offset < commit.arrival_offset  # the polls have shown a later record meanwhile
            if partition in lags_ms and commit.offset >= request.committed and not is_older:
                commit.arrival_offset, commit.is_rough = request.offset, request.is_rough
                commit.arrival_ms = request.newest_ms - lags_ms[partition]

    def lags(self, group_id: str, settled_ms: int | None = None) -> dict[Partition, PartitionLag]:
        """Return the lag of each partition with a committed offset.

        `settled_ms` is when the group settled.
        """
        commits = self._groups.get(group_id, {})
        return {
            partition: self._lag(partition, commit, settled_ms or 0) for partition, commit in commits.items()
        }

    def _lag(self, partition: Partition, commit: _Commit, settled_ms: int) -> PartitionLag:
        log, stands_ms = self._logs.bounds(partition), commit.stands_since_ms
        if log is None:
            return PartitionLag(commit.offset, commit.at_ms, stands_ms)
        records = lag_records(commit.offset, log)
        if not records:
            return PartitionLag(commit.offset, commit.at_ms, stands_ms, records=0, ms=0)
        return PartitionLag(
            commit.offset,
            commit.at_ms,
            stands_ms,
            records=records,
            ms=self._lag_ms(partition, commit, log),
            grew_ms=self._logs.grew_ms(partition, max(stands_ms, settled_ms)),
            rises=commit.trend is not None and commit.trend.rises,
        )

    def _lag_ms(self, partition: Partition, commit: _Commit, log: LogBounds) -> int | None:
        offset = next_offset(commit.offset, log)
        arrival, newest_ms = self._logs.arrival(partition, offset), self._logs.newest_ms(partition)
        if arrival is None or newest_ms is None:
            return None
        before, last = arrival
        if _is_exact(before, last):
            return lag_ms(last.ms, newest_ms)
        known = (
            TimedRecord(commit.arrival_offset, commit.arrival_ms)
            if 0 <= commit.arrival_offset <= offset
            else None
        )
        if before is None:  # the record arrived at an unknown time before the first poll
            return None if known is None else lag_ms(known.ms, newest_ms)
        if known is not None and known.offset > before.offset:
            before = TimedRecord(known.offset, min(max(known.ms, before.ms), last.ms))
        return lag_ms(_time_between(before, last, offset), newest_ms)

    def _next_inexact(self, partition: Partition, commit: _Commit) -> int | None:
        """Return the next offset if the time of its record is not exact but can be requested, else None."""
        log = self._logs.bounds(partition)
        if log is None or not lag_records(commit.offset, log):
            return None
        offset = next_offset(commit.offset, log)
        if commit.arrival_offset == offset and not (
            commit.is_rough and self._is_newest_exact(partition, log)
        ):
            return None
        arrival = self._logs.arrival(partition, offset)
        return None if arrival is None or _is_exact(*arrival) else offset

    def _is_newest_exact(self, partition: Partition, log: LogBounds) -> bool:
        arrival = self._logs.arrival(partition, log.latest - 1)
        return arrival is not None and _is_exact(*arrival)


def _time_between(before: TimedRecord, last: TimedRecord, offset: int) -> int:
    """Estimate the time of the record at `offset` as if records arrived evenly."""
    if offset == before.offset:
        return before.ms
    return before.ms + (last.ms - before.ms) * (offset - before.offset) // (last.offset - before.offset)


def _is_exact(before: TimedRecord | None, last: TimedRecord) -> bool:
    return before is not None and last.ms - before.ms <= EXACT_MS
