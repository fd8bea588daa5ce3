"""Computes the lag of all groups from their committed offsets and the logs' bounds over time. The input is
the records of the offsets topic and the brokers' answers, so the coordinator itself is not needed.
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
"""Samples are thinned out until their distance is up to their age divided by this."""
FORGET_MS = 300_000
"""A partition whose end has been unknown for this time is forgotten. A change of leader takes seconds."""


class TimedRecord(NamedTuple):
    """The offset of a record, and a time in ms at which it was on the log."""

    offset: int
    ms: int


class LogHistory:
    """A history of the bounds of logs, sampled every few seconds. For one thread at a time.

    A partition has at most MAX_SAMPLES samples. Old samples are further apart than recent ones.
    """

    def __init__(self) -> None:
        self._samples: dict[Partition, _Samples] = {}

    def add(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Add the bounds of all partitions of interest. Other partitions are forgotten after a while."""
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
        """Return the last known bounds, or None if there are none."""
        samples = self._samples.get(partition)
        return None if samples is None else LogBounds(samples.earliest, samples.ends[-1])

    def came(self, partition: Partition, offset: int) -> tuple[TimedRecord | None, TimedRecord] | None:
        """Return two samples between which the record at `offset` arrived: after the first, and at or before
        the second. Return None if the record has not been seen. The first sample is None if the record was
        already there at the first one.
        """
        samples = self._samples.get(partition)
        place = 0 if samples is None else bisect_right(samples.ends, offset)
        if samples is None or place == len(samples.ends):
            return None
        before = TimedRecord(samples.ends[place - 1] - 1, samples.last_ms[place - 1]) if place else None
        return before, TimedRecord(samples.ends[place] - 1, samples.first_ms[place])

    def newest_ms(self, partition: Partition) -> int | None:
        """Return when the newest record was first seen, or None if the partition is unknown."""
        samples = self._samples.get(partition)
        return None if samples is None else samples.first_ms[-1]

    def grew_ms(self, partition: Partition, since_ms: int) -> int | None:
        """Return when a record that arrived after a time was first seen, or None if none is known."""
        samples = self._samples.get(partition)
        if samples is None:
            return None
        place = bisect_left(samples.last_ms, since_ms) + 1
        return samples.first_ms[place] if place < len(samples.ends) else None


class _Samples:
    """End offsets, ascending, and the first and the last time at which each was seen. Arrays, because there
    may be 100,000 partitions.
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
        """Drop each sample whose neighbours are close enough to each other for their age."""
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
    """The trend of a lag in records, sampled every few seconds. For one thread at a time. Arrays, because
    there may be 100,000 partitions.
    """

    __slots__ = ("_highs", "_lows", "_step")

    def __init__(self) -> None:
        self._step = 0
        self._lows, self._highs = array("q"), array("q")

    def add(self, records: int, at_ms: int) -> None:
        """Add the lag at a time. A step without a sample, because no broker answered, starts a new window."""
        step = at_ms // STEP_MS
        if self._lows and step == self._step:
            self._lows[-1] = min(self._lows[-1], records)
            self._highs[-1] = max(self._highs[-1], records)
            return
        if step != self._step + 1:
            self._lows, self._highs = array("q"), array("q")
        self._step = step
        for lags in (self._lows, self._highs):
            lags.append(records)
            del lags[:-STEPS]

    @property
    def rises(self) -> bool:
        """Return True if the lag rises over the window, which has to be full."""
        return rises(self._lows, self._highs)


EXACT_MS = int(INTERVAL_S * 1500)
"""The time of a record is exact enough if the two polls around its arrival are at most this far apart."""
MAX_LOOK_UPS = 20
"""The maximum number of partitions whose record times one poll of the brokers requests."""


@dataclass(slots=True)
class _Commit:
    """A committed offset. `came_ms` is the time of the record at offset `came_offset`, from polls of the
    brokers or from a timestamp. `asked_at` is the number of the poll that requested it. `is_rough`: `came_ms`
    is computed relative to the newest record, whose own arrival was before the first poll.
    """

    offset: int
    at_ms: int
    stands_since_ms: int
    came_offset: int = -1
    came_ms: int = 0
    asked_at: int = 0
    is_rough: bool = False
    trend: Trend | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for a record's time, with the state at that time. `committed` is the committed offset, and
    `offset` is the record's.
    """

    commit: _Commit
    committed: int
    offset: int
    newest_ms: int
    is_rough: bool


class LagBook:
    """The committed offsets of all groups and the bounds of the logs, from which `lags` is computed. For one
    thread at a time.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[Partition, _Commit]] = {}
        self._logs = LogHistory()
        self._asked: dict[Partition, _Asked] = {}
        self._polls = 0
        self._behind: set[str] = set()

    def apply_commit(self, key: bytes, value: bytes | None) -> str:
        """Apply a record of the offsets topic. Return its group. Raises one of
        `kafka_why.contract.codec.UNREADABLE`.
        """
        group_id, topic, number = decode_offset_key(key)
        where = (topic, number)
        if value is None:
            commits = self._groups.get(group_id, {})
            commits.pop(where, None)
            if not commits:
                self._groups.pop(group_id, None)
            return group_id
        committed = decode_offset(value)
        self._take(group_id, where, committed.offset, committed.committed_at_ms)
        return group_id

    def set_commits(self, group_id: str, commits: Mapping[Partition, tuple[int, int]]) -> None:
        """Store all committed offsets of a group, each with the time of its commit."""
        for where in self._groups.get(group_id, {}).keys() - commits.keys():
            del self._groups[group_id][where]
        for where, (offset, at_ms) in commits.items():
            self._take(group_id, where, offset, at_ms)
        if not commits:
            self._groups.pop(group_id, None)

    def _take(self, group_id: str, where: Partition, offset: int, at_ms: int) -> None:
        commits = self._groups.setdefault(group_id, {})
        known = commits.get(where)
        if known is None:
            commits[where] = _Commit(offset, at_ms, at_ms)
            return
        if offset != known.offset:
            known.stands_since_ms = at_ms
        if offset < known.offset:
            known.came_offset = -1
        known.offset, known.at_ms = offset, at_ms

    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Store the bounds of the logs of `topics`."""
        self._logs.add(bounds, at_ms)
        self._polls += 1
        self._behind = set()
        for group_id, commits in self._groups.items():
            for where, commit in commits.items():
                log = bounds.get(where)
                records = 0 if log is None else lag_records(commit.offset, log)
                if records:
                    self._behind.add(group_id)
                if records and commit.trend is None:
                    commit.trend = Trend()
                if commit.trend is not None and log is not None:
                    commit.trend.add(records, at_ms)
                if records and log is not None:
                    self._remember(where, commit, next_offset(commit.offset, log))

    def _remember(self, where: Partition, commit: _Commit, offset: int) -> None:
        """Store the exact time of a record, because the samples that show it are thinned out later."""
        if commit.came_offset == offset and not commit.is_rough:
            return
        came = self._logs.came(where, offset)
        if came is not None and _is_exact(*came):
            commit.came_offset, commit.came_ms, commit.is_rough = offset, came[1].ms, False

    def topics(self) -> set[str]:
        """Return the topics with a committed offset."""
        return {topic for commits in self._groups.values() for topic, _ in commits}

    def behind(self) -> list[str]:
        """Return the groups that had records to consume at the last poll."""
        return [group_id for group_id in self._behind if group_id in self._groups]

    def offset_count(self) -> int:
        return sum(map(len, self._groups.values()))

    def has_offsets(self, group_id: str) -> bool:
        """Return True if a group has a committed offset."""
        return group_id in self._groups

    def wanted_times(self) -> dict[Partition, int]:
        """Return up to MAX_LOOK_UPS offsets whose record times the polls do not show exactly enough, the
        least recently requested first. Pass the result to `learn_times`.
        """
        found: dict[Partition, tuple[_Commit, int]] = {}
        for commits in self._groups.values():
            for where, commit in commits.items():
                offset = self._next_inexact(where, commit)
                if offset is not None and (where not in found or commit.asked_at < found[where][0].asked_at):
                    found[where] = (commit, offset)
        oldest = sorted(found, key=lambda where: found[where][0].asked_at)[:MAX_LOOK_UPS]
        self._asked = {where: self._asked_now(where, *found[where]) for where in oldest}
        return {where: found[where][1] for where in oldest}

    def _asked_now(self, where: Partition, commit: _Commit, offset: int) -> _Asked:
        newest_ms, log = self._logs.newest_ms(where), self._logs.bounds(where)
        assert newest_ms is not None and log is not None, "it is behind an end"
        return _Asked(
            commit, commit.offset, offset, newest_ms, is_rough=not self._is_newest_exact(where, log)
        )

    def learn_times(self, wanted: Mapping[Partition, int], lags_ms: Mapping[Partition, int]) -> None:
        """Store the brokers' lags in ms for those of `wanted` that they know, as of `wanted_times`. A lag is
        too long for a group that has committed a later offset meanwhile; the next answer corrects it.
        """
        for where in wanted.keys() & self._asked.keys():
            asked = self._asked.pop(where)
            commit = asked.commit
            commit.asked_at = self._polls
            is_older = asked.offset < commit.came_offset  # the polls have shown a later record meanwhile
            if where in lags_ms and commit.offset >= asked.committed and not is_older:
                commit.came_offset, commit.is_rough = asked.offset, asked.is_rough
                commit.came_ms = asked.newest_ms - lags_ms[where]

    def lags(self, group_id: str, settled_ms: int | None = None) -> dict[Partition, PartitionLag]:
        """Return the lag of each partition with a committed offset. The group settled at `settled_ms`."""
        commits = self._groups.get(group_id, {})
        return {where: self._lag(where, commit, settled_ms or 0) for where, commit in commits.items()}

    def _lag(self, where: Partition, commit: _Commit, settled_ms: int) -> PartitionLag:
        log, stands_ms = self._logs.bounds(where), commit.stands_since_ms
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
            ms=self._lag_ms(where, commit, log),
            grew_ms=self._logs.grew_ms(where, max(stands_ms, settled_ms)),
            rises=commit.trend is not None and commit.trend.rises,
        )

    def _lag_ms(self, where: Partition, commit: _Commit, log: LogBounds) -> int | None:
        offset = next_offset(commit.offset, log)
        came, newest_ms = self._logs.came(where, offset), self._logs.newest_ms(where)
        if came is None or newest_ms is None:
            return None
        before, last = came
        if _is_exact(before, last):
            return lag_ms(last.ms, newest_ms)
        known = TimedRecord(commit.came_offset, commit.came_ms) if 0 <= commit.came_offset <= offset else None
        if before is None:  # it arrived at an unknown time before the first poll
            return None if known is None else lag_ms(known.ms, newest_ms)
        if known is not None and known.offset > before.offset:
            before = TimedRecord(known.offset, min(max(known.ms, before.ms), last.ms))
        return lag_ms(_time_between(before, last, offset), newest_ms)

    def _next_inexact(self, where: Partition, commit: _Commit) -> int | None:
        """Return the next offset if the time of its record is not known exactly enough, else None."""
        log = self._logs.bounds(where)
        if log is None or not lag_records(commit.offset, log):
            return None
        offset = next_offset(commit.offset, log)
        if commit.came_offset == offset and not (commit.is_rough and self._is_newest_exact(where, log)):
            return None
        came = self._logs.came(where, offset)
        return None if came is None or _is_exact(*came) else offset

    def _is_newest_exact(self, where: Partition, log: LogBounds) -> bool:
        came = self._logs.came(where, log.latest - 1)
        return came is not None and _is_exact(*came)


def _time_between(before: TimedRecord, last: TimedRecord, offset: int) -> int:
    """Return the estimated time of a record between two others, as if the records arrived evenly."""
    if offset == before.offset:
        return before.ms
    return before.ms + (last.ms - before.ms) * (offset - before.offset) // (last.offset - before.offset)


def _is_exact(before: TimedRecord | None, last: TimedRecord) -> bool:
    return before is not None and last.ms - before.ms <= EXACT_MS
