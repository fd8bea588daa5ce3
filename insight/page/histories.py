"""The histories of groups that somebody looks at: read from the topic once, then continued by the fleet."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from insight.page.fleet import WINDOW_MS, Fleet
from insight.why.history import History, HistoryUnavailable, read_history
from records.client_config import ClientConfig
from records.layout import TopicLayout
from records.truncation import AnyHistoryEntry

MAX_GROUPS = 32
"""Histories that are kept, those that were looked at last."""
MAX_READERS = 4
"""Histories that are read at the same time. Who comes later waits."""
_FRESH_MS = WINDOW_MS // 2


@dataclass(frozen=True, slots=True)
class _Read:
    history: History
    since_ms: int
    at_ms: int


class Histories:
    """Returns histories, to several threads. What was read is continued with what the fleet has since."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, fleet: Fleet) -> None:
        self._client_config = client_config
        self._layout = layout
        self._fleet = fleet
        self._lock = threading.Lock()
        self._readers = threading.BoundedSemaphore(MAX_READERS)
        self._known: OrderedDict[str, _Read] = OrderedDict()

    def history(self, group_id: str, since_ms: int, now_ms: int) -> History:
        """Return the entries that a report since a time needs. Some may be duplicates. There are none of a
        group whose whole history is older than the topic's retention.

        Raises HistoryUnavailable if the group is unknown, and KafkaError.
        """
        read = self._fresh(group_id, since_ms, now_ms)
        if read is None:
            with self._readers:
                read = self._fresh(group_id, since_ms, now_ms) or self._read(group_id, since_ms, now_ms)
        facts = self._fleet.facts(group_id)
        later: list[AnyHistoryEntry] = [] if facts is None else list(facts.entries)
        of_topic = read.history
        return History(
            [*of_topic.entries, *later], of_topic.unread, of_topic.from_start, of_topic.records_read
        )

    def _fresh(self, group_id: str, since_ms: int, now_ms: int) -> _Read | None:
        with self._lock:
            known = self._known.get(group_id)
            if known is None or known.since_ms > since_ms or now_ms - known.at_ms > _FRESH_MS:
                return None
            self._known.move_to_end(group_id)
            return known

    def _read(self, group_id: str, since_ms: int, now_ms: int) -> _Read:
        try:
            found = read_history(self._client_config, self._layout, group_id, since_ms)
        except HistoryUnavailable:
            facts = self._fleet.facts(group_id)
            if facts is None or (facts.view is None and not facts.entries):
                raise
            found = History([], frozenset(), from_start=False, records_read=0)
        with self._lock:
            self._known[group_id] = read = _Read(found, since_ms, now_ms)
            self._known.move_to_end(group_id)
            while len(self._known) > MAX_GROUPS:
                self._known.popitem(last=False)
        return read
