"""The courses of groups that somebody looks at: kept, and made again in the background when entries came.

A course of 100,000 entries takes seconds to read and to follow. Who asks meanwhile gets the course that was
made before, or that of the entries of the last hour, which the fleet has.
"""

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from insight.page.fleet import Fleet
from insight.page.histories import Histories
from insight.why.course import Course, course_of
from state.kafka.history import HistoryEntry
from state.rocketmq.history import HistoryEntry as RocketMqHistoryEntry

MAX_GROUPS = 32
"""Courses that are kept, those that were looked at last."""
MAX_MAKING = 2
"""Courses that are read and made at the same time. Who comes later waits, or gets an older one."""
PATIENCE_S = 0.5
"""How long a reader waits for the whole history, if the fleet has a part of it."""
AGED_PATIENCE_S = 0.05
"""How long a reader waits for the newest entries, if there is a course without them."""


@dataclass(frozen=True, slots=True)
class Made:
    """What was made of a group's history from `since_ms` to `until_ms`.

    `course` is None for a group without an entry of Kafka's protocol. `rocketmq` has the entries if the last
    one is of a RocketMQ group. `from_start`: the history begins with the first retained entry. `is_whole`: it
    was read from the topic. `entries_version` is that of the fleet's facts which it has.
    """

    course: Course | None
    rocketmq: list[RocketMqHistoryEntry]
    from_start: bool
    since_ms: int
    until_ms: int
    entries_version: int
    is_whole: bool = True
    ended_s: float = 0.0
    took_s: float = 0.0

    def has(self, limits_ms: tuple[int, int]) -> bool:
        """Whether it has all that was between two times."""
        return self.is_whole and self.since_ms <= limits_ms[0] and limits_ms[1] <= self.until_ms

    def may_be_made_again(self) -> bool:
        """Whether making it took a third of the time since then, at most: readers need the interpreter."""
        return time.monotonic() - self.ended_s >= 2 * self.took_s


class Courses:
    """Returns what was made of histories, to several threads."""

    def __init__(self, histories: Histories, fleet: Fleet) -> None:
        self._histories = histories
        self._fleet = fleet
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_MAKING, thread_name_prefix="page-courses")
        self._known: OrderedDict[str, Made] = OrderedDict()
        self._making: dict[tuple[str, int], Future[Made]] = {}
        self._awaited: set[str] = set()

    def close(self) -> None:
        """Make no more courses."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def made(self, group_id: str, limits_ms: tuple[int, int], now_ms: int, *, is_patient: bool) -> Made:
        """Return what there is of a group between two times. When there is more, the fleet touches the group.
        `is_patient`: the reader waits until nothing of this time is missing but the newest entries.

        Raises HistoryUnavailable if the group is unknown, and KafkaError.
        """
        known = self._look_up(group_id)
        if known is not None and known.has(limits_ms):
            return known
        reaches_back = known is not None and known.has((limits_ms[0], known.until_ms))
        if known is not None and reaches_back and self._is_current(group_id, known):
            return known
        if known is not None and reaches_back and not known.may_be_made_again():
            return known
        making = self._start(group_id, limits_ms[0], now_ms)
        patience_s = AGED_PATIENCE_S if reaches_back else None if is_patient else PATIENCE_S
        if patience_s is not None:
            self._awaited.add(group_id)
        wait([making], patience_s)
        if making.done() and (making.exception() is None or not reaches_back):
            return making.result()
        less = known if known is not None and known.is_whole else self._of_fleet(group_id, known)
        return making.result() if less is None else less

    def _look_up(self, group_id: str) -> Made | None:
        with self._lock:
            known = self._known.get(group_id)
            if known is not None:
                self._known.move_to_end(group_id)
            return known

    def _keep(self, group_id: str, made: Made) -> Made:
        with self._lock:
            self._known[group_id] = made
            self._known.move_to_end(group_id)
            while len(self._known) > MAX_GROUPS:
                self._known.popitem(last=False)
        return made

    def _is_current(self, group_id: str, known: Made) -> bool:
        return known.entries_version == self._fleet.entries_version(group_id)

    def _start(self, group_id: str, since_ms: int, now_ms: int) -> Future[Made]:
        """Make a course, unless one that begins as early is being made."""
        with self._lock:
            for (other_id, other_ms), making in self._making.items():
                if other_id == group_id and other_ms <= since_ms:
                    return making
            making = self._threads.submit(self._make, group_id, since_ms, now_ms)
            self._making[group_id, since_ms] = making
        making.add_done_callback(lambda _: self._is_made(group_id, since_ms))
        return making

    def _is_made(self, group_id: str, since_ms: int) -> None:
        with self._lock:
            del self._making[group_id, since_ms]
        if group_id in self._awaited:
            self._awaited.discard(group_id)
            self._fleet.touch(group_id)

    def _make(self, group_id: str, since_ms: int, now_ms: int) -> Made:
        began_s = time.monotonic()
        read = self._histories.read(group_id, since_ms, now_ms)
        history = read.history
        ours = [entry for entry in history.entries if isinstance(entry, HistoryEntry)]
        rocketmq: list[RocketMqHistoryEntry] = []
        if history.entries and isinstance(history.entries[-1], RocketMqHistoryEntry):
            rocketmq = [entry for entry in history.entries if isinstance(entry, RocketMqHistoryEntry)]
        course = None
        if ours and not rocketmq:
            course = course_of(ours, unread=history.unread, from_start=history.from_start)
        made = Made(
            course,
            rocketmq,
            history.from_start,
            read.since_ms,
            now_ms,
            read.entries_version,
            ended_s=time.monotonic(),
            took_s=time.monotonic() - began_s,
        )
        return self._keep(group_id, made)

    def _of_fleet(self, group_id: str, known: Made | None) -> Made | None:
        """What the entries of the last hour say, None if there are none of Kafka's protocol."""
        facts = self._fleet.facts(group_id)
        if facts is None or not facts.entries or not isinstance(facts.entries[-1], HistoryEntry):
            return None
        if known is not None and known.entries_version == facts.entries_version:
            return known
        ours = [entry for entry in facts.entries if isinstance(entry, HistoryEntry)]
        course = course_of(ours, from_start=False)
        first_ms, last_ms = ours[0].at_ms, ours[-1].at_ms
        part = Made(course, [], False, first_ms, last_ms, facts.entries_version, is_whole=False)
        with self._lock:
            if group_id not in self._known or not self._known[group_id].is_whole:
                self._known[group_id] = part
        return part
