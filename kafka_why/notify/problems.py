"""The thread that finds problems: the page's findings about groups and about the coordinator."""

import re
import time
from collections.abc import Callable, Iterator

from kafka_why.lifetimes import BackgroundThread
from kafka_why.notify.episodes import Episodes, Trouble
from kafka_why.notify.messages import ALARM, name_of
from kafka_why.notify.outbox import Outbox
from kafka_why.now import now_ms
from kafka_why.page.coordinator import coordinator_page
from kafka_why.page.fleet import Fleet
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.service_state import StateReader

POLL_INTERVAL_S = 5.0
MAX_READ_AGE_S = 30.0
"""The maximum age of the data. While the data is older, no trouble begins or ends."""
_FIGURES = re.compile(r"[:\d]")


class Sources:
    """The data about groups and the coordinator that the page shows, too. `read_age_s` returns how long ago
    the topics were read. `topics` is None if the coordinator's topics are not read, and `state` is None if no
    metrics URL was given.
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
        """Return True if the topics were read to their ends, at most MAX_READ_AGE_S ago."""
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
    """Return the part of an alarm's sentence that identifies it: the part before the first digit or colon,
    because the rest changes.
    """
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
