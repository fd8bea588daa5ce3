"""Finds the problems of groups and of the coordinator that the page shows. Each has two messages: one when it
begins, and one when it ends.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kafka_why.lifetimes import BackgroundThread
from kafka_why.notify.messages import ALARM, Link, Message, Outbox, Status, kind_name, page_link, safe_text
from kafka_why.now import now_ms
from kafka_why.page.coordinator import coordinator_page
from kafka_why.page.fleet import Fleet
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.service_state import StateReader

Key: TypeAlias = tuple[str, str]
"""The kind of a problem and its subject: a group, or the beginning of an alarm's sentence."""


class Problem(NamedTuple):
    """A current problem."""

    kind: str
    subject: str
    group: str | None  # None for an alarm
    sentence: str
    since_ms: int | None = None  # None if unknown

    @property
    def key(self) -> Key:
        """The key by which successive polls recognize the problem."""
        return self.kind, self.subject


@dataclass(slots=True)
class _Episode:
    """A problem from its beginning to its end."""

    problem: Problem
    began_ms: int
    is_detected: bool  # this process has detected it, not only the previous one
    sent_ms: int | None  # time of the last message, or None before the first


class Episodes:
    """The open problems, updated at each poll. For use by one thread.

    `open_before` has the BEGAN messages that the previous process sent about open problems. Some problems are
    detected late after a start. So until `settled_ms`, such a problem does not end while this process has not
    detected it. `is_wanted` decides if a message is sent. While a problem lasts, BEGAN is sent again after
    `again_ms`, unless that is None.
    """

    def __init__(
        self,
        open_before: Iterable[Message],
        *,
        settled_ms: int,
        is_wanted: Callable[[Message, int], bool],
        link: Link,
        again_ms: int | None = None,
    ) -> None:
        self._settled_ms = settled_ms
        self._is_wanted = is_wanted
        self._link = link
        self._again_ms = again_ms
        self._open: dict[Key, _Episode] = {}
        for sent in open_before:
            problem = Problem(sent.kind, sent.subject, sent.group, sent.sentence, sent.began_ms)
            self._open[problem.key] = _Episode(
                problem, sent.began_ms, is_detected=False, sent_ms=sent.began_ms
            )

    def update(self, found: Iterable[Problem], now_ms: int) -> list[Message]:
        """Apply all current problems. Return the messages to send."""
        current = {problem.key: problem for problem in found}
        messages = [message for key in list(self._open) for message in self._ended(key, current, now_ms)]
        for key, problem in current.items():
            episode = self._open.get(key)
            if episode is None:
                began_ms = now_ms if problem.since_ms is None else problem.since_ms
                episode = self._open[key] = _Episode(problem, began_ms, is_detected=True, sent_ms=None)
            episode.problem, episode.is_detected = problem, True
            if self._is_due(episode, now_ms):
                message = self._message(episode, Status.BEGAN, now_ms)
                if self._is_wanted(message, now_ms):
                    episode.sent_ms = now_ms
                    messages.append(message)
        return messages

    def _is_due(self, episode: _Episode, now_ms: int) -> bool:
        """Return True if BEGAN is to be sent, for the first time or again."""
        return episode.sent_ms is None or (
            self._again_ms is not None and now_ms - episode.sent_ms >= self._again_ms
        )

    def _ended(self, key: Key, current: dict[Key, Problem], now_ms: int) -> list[Message]:
        """Close an episode whose problem has ended. Return ENDED if BEGAN was sent."""
        episode = self._open[key]
        can_end = episode.is_detected or now_ms >= self._settled_ms
        if key in current or not can_end:
            return []
        del self._open[key]
        return [] if episode.sent_ms is None else [self._message(episode, Status.ENDED, now_ms)]

    def _message(self, episode: _Episode, status: Status, now_ms: int) -> Message:
        problem = episode.problem
        return Message(
            id=f"{problem.kind}:{problem.subject}:{episode.began_ms}",
            kind=problem.kind,
            status=status,
            subject=problem.subject,
            group=problem.group,
            sentence=safe_text(problem.sentence),
            began_ms=episode.began_ms,
            ended_ms=now_ms if status is Status.ENDED else None,
            page=page_link(problem.group, self._link),
        )


POLL_INTERVAL_S = 5.0
"""The minimum pause between two polls for problems."""
MAX_READ_AGE_S = 30.0
"""The maximum age of the data. While the data is older, no problem begins or ends."""
_COLON_OR_DIGIT = re.compile(r"[:\d]")


class Sources:
    """The data about groups and the coordinator, which the page shows, too.

    `read_age_s` returns how long ago the topics were read. `topics` is None if the coordinator's topics are
    not read, and `state` is None without a metrics URL.
    """

    def __init__(
        self,
        fleet: Fleet,
        topics: ServiceTopics | None,
        state: StateReader | None,
        read_age_s: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._overview = Overview(fleet)
        self._topics = topics
        self._state = state
        self._read_age_s = read_age_s

    @property
    def is_current(self) -> bool:
        """True if the topics were read to their ends, at most MAX_READ_AGE_S ago."""
        return self._fleet.is_complete and self._read_age_s() <= MAX_READ_AGE_S

    def problems(self, now_ms: int) -> Iterator[Problem]:
        """Yield the current problems, as the page shows them."""
        for line in self._overview.lines(now_ms, with_members=False):
            for finding in line.findings:
                yield Problem(
                    kind=kind_name(finding.kind),
                    subject=line.group_id,
                    group=line.group_id,
                    sentence=finding.sentence,
                    since_ms=finding.since_ms,
                )
        for sentence in self._alarms(now_ms):
            yield Problem(ALARM, alarm_of(sentence), group=None, sentence=sentence)

    def _alarms(self, now_ms: int) -> list[str]:
        """Return the findings about the coordinator, each a sentence."""
        if self._topics is None:
            return []
        polled = None if self._state is None else self._state.poll()
        facts = self._topics.facts(now_ms)
        return coordinator_page(facts, (), polled, self._read_age_s(), now_ms).findings


def alarm_of(sentence: str) -> str:
    """Return the part of an alarm's sentence that does not change: before the first digit or colon."""
    return _COLON_OR_DIGIT.split(sentence)[0].strip()


class ProblemsThread(BackgroundThread):
    """The thread that polls for problems until stopped. Close the outbox before `stop`."""

    def __init__(self, sources: Sources, episodes: Episodes, outbox: Outbox) -> None:
        self._sources = sources
        self._episodes = episodes
        self._outbox = outbox
        super().__init__("notify-problems")

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            began_s = time.monotonic()
            if self._sources.is_current:
                at_ms = now_ms()
                self._outbox.put(self._episodes.update(self._sources.problems(at_ms), at_ms))
            # Use the interpreter for at most a third of the time: other threads read the events.
            pause_s = max(POLL_INTERVAL_S, 2 * (time.monotonic() - began_s))
