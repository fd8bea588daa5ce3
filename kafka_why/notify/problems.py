"""The thread that finds problems (the page's findings about groups and about the coordinator), and turns each
into two messages: one when it begins, one when it ends.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kafka_why.lifetimes import BackgroundThread
from kafka_why.notify.messages import ALARM, Link, Message, Outbox, Status, name_of, page_of, shown
from kafka_why.now import now_ms
from kafka_why.page.coordinator import coordinator_page
from kafka_why.page.fleet import Fleet
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.service_state import StateReader

Key: TypeAlias = tuple[str, str]
"""The kind of a trouble and its subject: a group, or the beginning of an alarm's sentence."""


class Trouble(NamedTuple):
    """A current problem."""

    kind: str
    subject: str
    group: str | None  # None for an alarm
    sentence: str
    since_ms: int | None = None  # None if unknown

    @property
    def key(self) -> Key:
        return self.kind, self.subject


@dataclass(slots=True)
class _Episode:
    """A trouble from its beginning to its end."""

    trouble: Trouble
    began_ms: int
    is_seen: bool  # this process has found it
    sent_ms: int | None  # time of the last message, or None before the first


class Episodes:
    """The open troubles, updated at each poll. For use by one thread.

    `open_before` are the open troubles that the previous process had sent. Some troubles are detected late
    after a start, so until `settled_ms` such a trouble ends only if this process has found it, too.
    `is_wanted` decides if a message is sent. While a trouble lasts, BEGAN is sent again after `again_ms`,
    unless it is None.
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
            trouble = Trouble(sent.kind, sent.subject, sent.group, sent.sentence, sent.began_ms)
            self._open[trouble.key] = _Episode(trouble, sent.began_ms, is_seen=False, sent_ms=sent.began_ms)

    def update(self, found: Iterable[Trouble], now_ms: int) -> list[Message]:
        """Apply all current troubles. Return the messages to send."""
        now = {trouble.key: trouble for trouble in found}
        messages = [message for key in list(self._open) for message in self._ended(key, now, now_ms)]
        for key, trouble in now.items():
            episode = self._open.get(key)
            if episode is None:
                began_ms = now_ms if trouble.since_ms is None else trouble.since_ms
                episode = self._open[key] = _Episode(trouble, began_ms, is_seen=True, sent_ms=None)
            episode.trouble, episode.is_seen = trouble, True
            if self._is_due(episode, now_ms):
                message = self._message(episode, Status.BEGAN, now_ms)
                if self._is_wanted(message, now_ms):
                    episode.sent_ms = now_ms
                    messages.append(message)
        return messages

    def _is_due(self, episode: _Episode, now_ms: int) -> bool:
        if episode.sent_ms is None:
            return True
        return self._again_ms is not None and now_ms - episode.sent_ms >= self._again_ms

    def _ended(self, key: Key, now: dict[Key, Trouble], now_ms: int) -> list[Message]:
        episode = self._open[key]
        if key in now or not (episode.is_seen or now_ms >= self._settled_ms):
            return []
        del self._open[key]
        return [] if episode.sent_ms is None else [self._message(episode, Status.ENDED, now_ms)]

    def _message(self, episode: _Episode, status: Status, now_ms: int) -> Message:
        trouble = episode.trouble
        return Message(
            id=f"{trouble.kind}:{trouble.subject}:{episode.began_ms}",
            kind=trouble.kind,
            status=status,
            subject=trouble.subject,
            group=trouble.group,
            sentence=shown(trouble.sentence),
            began_ms=episode.began_ms,
            ended_ms=now_ms if status is Status.ENDED else None,
            page=page_of(trouble.group, self._link),
        )


POLL_INTERVAL_S = 5.0
MAX_READ_AGE_S = 30.0
"""The maximum age of the data. While the data is older, no trouble begins or ends."""
_FIGURES = re.compile(r"[:\d]")


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

    def troubles(self, now_ms: int) -> Iterator[Trouble]:
        """Yield the current troubles, as the page shows them."""
        for line in self._overview.lines(now_ms, with_members=False):
            for finding in line.findings:
                kind = name_of(finding.kind)
                yield Trouble(kind, line.group_id, line.group_id, finding.sentence, finding.since_ms)
        for sentence in self._alarms(now_ms):
            yield Trouble(ALARM, alarm_of(sentence), None, sentence)

    def _alarms(self, now_ms: int) -> list[str]:
        if self._topics is None:
            return []
        polled = None if self._state is None else self._state.poll()
        facts = self._topics.facts(now_ms)
        return coordinator_page(facts, (), polled, self._read_age_s(), now_ms).findings


def alarm_of(sentence: str) -> str:
    """Return the part of an alarm's sentence that does not change: before the first digit or colon."""
    return _FIGURES.split(sentence)[0].strip()


class TroublesThread(BackgroundThread):
    """The thread that polls for troubles until stopped. Close the outbox before `stop`."""

    def __init__(self, sources: Sources, episodes: Episodes, outbox: Outbox) -> None:
        self._sources = sources
        self._episodes = episodes
        self._outbox = outbox
        super().__init__("notify-troubles")

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            began_s = time.monotonic()
            if self._sources.is_current:
                at_ms = now_ms()
                self._outbox.put(self._episodes.update(self._sources.troubles(at_ms), at_ms))
            # Use the interpreter for at most a third of the time: other threads read the events.
            pause_s = max(POLL_INTERVAL_S, 2 * (time.monotonic() - began_s))
