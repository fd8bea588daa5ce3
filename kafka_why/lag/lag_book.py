"""Computes the lag of all groups from their committed offsets and from the logs' bounds over time. The
coordinator is not needed: the input is the records of the offsets topic and the brokers' responses.
"""

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from kafka_why.contract.codec import decode_offset, decode_offset_key
from kafka_why.lag.brokers import INTERVAL_S, TimedRecord
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
"""The divisor of a sample's age that gives the maximum distance to its neighbor. A greater number keeps more
samples.
"""
FORGET_MS = 300_000
"""A partition whose end has been unknown for this time is forgotten. A change of leader takes seconds."""


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
        """Return the samples before and after the arrival of the record at `offset`.

        A sample is returned as its last record, with a time at which this record was in the log. The first
        sample is None if the record arrived before all samples. Return None if no sample has the record.
        """
        samples = self._samples.get(partition, _NO_SAMPLES)
        index = bisect_right(samples.ends, offset)
        if index == len(samples.ends):
            return None
        after = TimedRecord(samples.ends[index] - 1, samples.first_ms[index])
        if index == 0:
            return None, after
        return TimedRecord(samples.ends[index - 1] - 1, samples.last_ms[index - 1]), after

    def newest_ms(self, partition: Partition) -> int | None:
        """Return the time of the first sample with the newest record, or None if the partition is unknown."""
        samples = self._samples.get(partition)
        return None if samples is None else samples.first_ms[-1]

    def grew_ms(self, partition: Partition, since_ms: int) -> int | None:
        """Return the time of the first sample with a record that arrived after `since_ms`, or None."""
        samples = self._samples.get(partition, _NO_SAMPLES)
        # The log may have had the first end seen at or after `since_ms` before that, but not the next end.
        next_index = bisect_left(samples.last_ms, since_ms) + 1
        return samples.first_ms[next_index] if next_index < len(samples.ends) else None


class _Samples:
    """The end offsets of one log, ascending, and the first and the last time at which each was seen.

    They are in arrays, because there may be 100,000 partitions.
    """

    __slots__ = ("earliest", "ends", "first_ms", "last_ms")

    def __init__(self) -> None:
        self.earliest = 0  # first offset of the log at the last poll
        self.ends, self.first_ms, self.last_ms = array("q"), array("q"), array("q")

    def add(self, end: int, at_ms: int) -> None:
        """Add the end of the log, as a new sample or as a later time of the last one."""
        if self.ends and end == self.ends[-1]:
            self.last_ms[-1] = at_ms
            return
        self.ends.append(end)
        self.first_ms.append(at_ms)
        self.last_ms.append(at_ms)
        if len(self.ends) > MAX_SAMPLES:
            self._thin(at_ms)

    def _thin(self, now_ms: int) -> None:
        """Drop samples whose neighbors are close to each other, relative to their age."""
        kept_indexes = [len(self.ends) - 1]  # from the youngest sample to the oldest
        for index in range(len(self.ends) - 2, 0, -1):
            younger_ms = self.first_ms[kept_indexes[-1]]
            gap_ms = younger_ms - self.last_ms[index - 1]  # if the sample at `index` is dropped
            if gap_ms * COARSENESS > now_ms - younger_ms:
                kept_indexes.append(index)
        kept_indexes = [*kept_indexes, 0][:MAX_SAMPLES]
        for name in ("ends", "first_ms", "last_ms"):
            values = getattr(self, name)
            setattr(self, name, array("q", (values[index] for index in reversed(kept_indexes))))


_NO_SAMPLES = _Samples()  # never changed

STEP_MS = WINDOW_MS // STEPS


class Trend:
    """The trend of a lag in records, sampled every few seconds. For use by one thread at a time.

    The lags are in arrays, because there may be 100,000 partitions.
    """

    __slots__ = ("_highs", "_lows", "_step")

    def __init__(self) -> None:
        self._step = 0  # number of the last step, counted from 1970
        self._lows, self._highs = array("q"), array("q")  # least and greatest lag in each step

    def add(self, records: int, at_ms: int) -> None:
        """Add the lag at `at_ms`."""
        step = at_ms // STEP_MS
        if self._lows and step == self._step:
            self._lows[-1] = min(self._lows[-1], records)
            self._highs[-1] = max(self._highs[-1], records)
            return
        if step != self._step + 1:  # the step before had no sample, because no broker answered
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
"""The maximum number of partitions whose times of records one poll requests."""


@dataclass(slots=True)
class _Commit:
    """A committed offset."""

    offset: int
    at_ms: int  # of the last commit
    stands_since_ms: int  # of the last commit that changed the offset
    arrival_offset: int = -1  # offset of a record whose time is known, or -1
    arrival_ms: int = 0  # time of the record at `arrival_offset`, by a poll or a timestamp
    requested_in_poll: int = 0  # number of the last poll that requested a time; 0 if none did
    is_rough: bool = False  # `arrival_ms` was computed from the newest record's time, which was not exact
    trend: Trend | None = None  # None until the group has lagged for the first time


@dataclass(frozen=True, slots=True)
class _TimeRequest:
    """A request for the time of the record at `offset`. The other fields are as of the request."""

    commit: _Commit
    committed: int  # the committed offset
    offset: int
    newest_ms: int  # time of the log's newest record
    is_rough: bool  # `newest_ms` is not exact


class LagBook:
    """The committed offsets of all groups, and the bounds of the logs that these offsets are in.

    It has the bounds of `other_topics`, too. Threads that share it hold `lock` while they use it.
    """

    def __init__(self, *other_topics: str) -> None:
        self.lock = threading.Lock()
        self.polled_ms = 0  # time of the last poll
        self._other_topics = other_topics
        self._groups: dict[str, dict[Partition, _Commit]] = {}
        self.logs = LogHistory()
        self._requests: dict[Partition, _TimeRequest] = {}  # of the last result of `wanted_times`
        self._poll_count = 0
        self._groups_behind: set[str] = set()  # at the last poll

    def apply_commit(self, key: bytes, value: bytes | None) -> str:
        """Apply a record of the offsets topic, and return its group id.

        Raises one of UNREADABLE (`contract.codec`) if the record cannot be decoded.
        """
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
        """Replace all committed offsets of a group. A commit is an offset, and the time of the commit."""
        for partition in self._groups.get(group_id, {}).keys() - commits.keys():
            del self._groups[group_id][partition]
        for partition, (offset, at_ms) in commits.items():
            self._set_commit(group_id, partition, offset, at_ms)
        if not commits:
            self._groups.pop(group_id, None)

    def _set_commit(self, group_id: str, partition: Partition, offset: int, at_ms: int) -> None:
        commits = self._groups.setdefault(group_id, {})
        commit = commits.get(partition)
        if commit is None:
            commits[partition] = _Commit(offset, at_ms, stands_since_ms=at_ms)
            return
        if offset != commit.offset:
            commit.stands_since_ms = at_ms
        if offset < commit.offset:  # the group was reset, and `arrival_ms` may be of a later record
            commit.arrival_offset = -1
        commit.offset, commit.at_ms = offset, at_ms

    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Add the bounds of the logs at `at_ms`, and update trends and arrival times."""
        self.logs.add(bounds, at_ms)
        self.polled_ms = at_ms
        self._poll_count += 1
        self._groups_behind = set()
        for group_id, commits in self._groups.items():
            for partition, commit in commits.items():
                log = bounds.get(partition)
                if log is None:
                    continue
                records = lag_records(commit.offset, log)
                if records:
                    self._groups_behind.add(group_id)
                    commit.trend = commit.trend or Trend()
                    self._store_exact_arrival(partition, commit, next_offset(commit.offset, log))
                if commit.trend is not None:
                    commit.trend.add(records, at_ms)

    def _store_exact_arrival(self, partition: Partition, commit: _Commit, offset: int) -> None:
        """Store the arrival time of the next record, at `offset`, while the samples around it are exact."""
        if commit.arrival_offset == offset and not commit.is_rough:
            return
        arrival = self.logs.arrival(partition, offset)
        if arrival is not None and _is_exact(*arrival):
            commit.arrival_offset, commit.arrival_ms, commit.is_rough = offset, arrival[1].ms, False

    def topics(self) -> set[str]:
        """Return the topics whose bounds are needed."""
        return {topic for commits in self._groups.values() for topic, _ in commits}.union(self._other_topics)

    def groups_behind(self) -> list[str]:
        """Return the groups that had records to consume at the last poll."""
        return [group_id for group_id in self._groups_behind if group_id in self._groups]

    def offset_count(self) -> int:
        return sum(map(len, self._groups.values()))

    def has_offsets(self, group_id: str) -> bool:
        """Return True if a group has a committed offset."""
        return group_id in self._groups

    def wanted_times(self) -> dict[Partition, int]:
        """Return the offsets of the records whose times the brokers should be queried for, by partition.

        They are the next records of groups that lag, and their times are not exact. Return at most
        MAX_LOOK_UPS, the least recently requested first. Pass the result to `add_times`.
        """
        # Of several groups with a commit in one partition, the least recently requested one is the candidate.
        candidates: dict[Partition, _Commit] = {}
        for commits in self._groups.values():
            for partition, commit in commits.items():
                other = candidates.get(partition)
                is_first = other is None or commit.requested_in_poll < other.requested_in_poll
                if is_first and self._needs_request(partition, commit):
                    candidates[partition] = commit
        chosen = sorted(candidates, key=lambda p: candidates[p].requested_in_poll)[:MAX_LOOK_UPS]
        self._requests = {p: self._time_request(p, candidates[p]) for p in chosen}
        return {partition: request.offset for partition, request in self._requests.items()}

    def _time_request(self, partition: Partition, commit: _Commit) -> _TimeRequest:
        newest_ms, log = self.logs.newest_ms(partition), self.logs.bounds(partition)
        assert newest_ms is not None and log is not None, "the committed offset is before the log's end"
        is_rough = not self._is_newest_exact(partition, log)
        return _TimeRequest(commit, commit.offset, next_offset(commit.offset, log), newest_ms, is_rough)

    def add_times(self, wanted: Mapping[Partition, int], lags_ms: Mapping[Partition, int]) -> None:
        """Store the brokers' lags for `wanted`, a result of `wanted_times`. `lags_ms` omits unknown lags.

        If the group has committed a later offset since the request, its lag is too long until the next
        result.
        """
        for partition in wanted.keys() & self._requests.keys():
            request = self._requests.pop(partition)
            commit = request.commit
            commit.requested_in_poll = self._poll_count
            was_reset = commit.offset < request.committed
            is_outdated = request.offset < commit.arrival_offset  # the time of a later record is known now
            if partition in lags_ms and not was_reset and not is_outdated:
                commit.arrival_offset, commit.is_rough = request.offset, request.is_rough
                commit.arrival_ms = request.newest_ms - lags_ms[partition]

    def lags(self, group_id: str, settled_ms: int | None = None) -> dict[Partition, PartitionLag]:
        """Return the lag of each partition with a committed offset.

        `settled_ms` is the time at which the group settled, or None if unknown (see `Ownership`).
        """
        commits = self._groups.get(group_id, {})
        return {
            partition: self._lag(partition, commit, settled_ms or 0) for partition, commit in commits.items()
        }

    def _lag(self, partition: Partition, commit: _Commit, settled_ms: int) -> PartitionLag:
        log, stands_since_ms = self.logs.bounds(partition), commit.stands_since_ms
        if log is None:
            return PartitionLag(commit.offset, commit.at_ms, stands_since_ms)
        records = lag_records(commit.offset, log)
        if not records:
            return PartitionLag(commit.offset, commit.at_ms, stands_since_ms, records=0, ms=0)
        return PartitionLag(
            commit.offset,
            commit.at_ms,
            stands_since_ms,
            records=records,
            ms=self._lag_ms(partition, commit, log),
            grew_ms=self.logs.grew_ms(partition, max(stands_since_ms, settled_ms)),
            rises=commit.trend is not None and commit.trend.rises,
        )

    def _lag_ms(self, partition: Partition, commit: _Commit, log: LogBounds) -> int | None:
        """Return the lag in time, by the exact or the estimated time of the next record, or None."""
        offset = next_offset(commit.offset, log)
        arrival, newest_ms = self.logs.arrival(partition, offset), self.logs.newest_ms(partition)
        if arrival is None or newest_ms is None:
            return None
        before, after = arrival
        if _is_exact(before, after):
            return lag_ms(after.ms, newest_ms)
        has_stored = 0 <= commit.arrival_offset <= offset
        stored = TimedRecord(commit.arrival_offset, commit.arrival_ms) if has_stored else None
        if before is None:  # the record arrived at an unknown time before the first poll
            return None if stored is None else lag_ms(stored.ms, newest_ms)
        if stored is not None and stored.offset > before.offset:
            # The stored record is closer to the next one than the sample, so the estimate is better.
            stored_ms = min(max(stored.ms, before.ms), after.ms)
            before = TimedRecord(stored.offset, stored_ms)
        return lag_ms(_time_between(before, after, offset), newest_ms)

    def _needs_request(self, partition: Partition, commit: _Commit) -> bool:
        """Return True if the time of the next record is not exact, and a request can make it so."""
        log = self.logs.bounds(partition)
        if log is None or not lag_records(commit.offset, log):
            return False
        offset = next_offset(commit.offset, log)
        can_improve = commit.is_rough and self._is_newest_exact(partition, log)
        if commit.arrival_offset == offset and not can_improve:
            return False
        arrival = self.logs.arrival(partition, offset)
        return arrival is not None and not _is_exact(*arrival)

    def _is_newest_exact(self, partition: Partition, log: LogBounds) -> bool:
        arrival = self.logs.arrival(partition, log.latest - 1)
        return arrival is not None and _is_exact(*arrival)


def _time_between(before: TimedRecord, after: TimedRecord, offset: int) -> int:
    """Estimate the time of the record at `offset` as if records arrived evenly."""
    if offset == before.offset:
        return before.ms
    return before.ms + (after.ms - before.ms) * (offset - before.offset) // (after.offset - before.offset)


def _is_exact(before: TimedRecord | None, after: TimedRecord) -> bool:
    return before is not None and after.ms - before.ms <= EXACT_MS
