"""A group's history where nothing of ours was set up before: from `__consumer_offsets`, or by polling."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from kafka_why.connections.client_config import ClientConfig
from kafka_why.stored_log import Progress
from kafka_why.why.history import History, HistoryUnavailable, LiveSource
from kafka_why.why.live_sources import LiveOffsetsTopic, Polling
from kafka_why.why.offsets_topic import OffsetsUnreadable, read_offsets_topic

WATCH_S = 10
"""The time for which a group is polled if it is not followed."""


class AtOnce(NamedTuple):
    """A history, what to say about its source, and where it goes on if it is followed."""

    history: History
    notes: list[str]
    live: LiveSource | None = None


def read_at_once(
    client_config: ClientConfig,
    group_id: str,
    since_ms: int | None,
    progress: Progress,
    *,
    polls: bool | None,
    follows: bool,
    tell: Callable[[str], None],
) -> AtOnce:
    """Return the history of a group. With `polls` True it is polled, with None only if `__consumer_offsets`
    is not readable. `tell` reports what takes time.

    Raises HistoryUnavailable, which names the right that is missing, and KafkaError.
    """
    unreadable: OffsetsUnreadable | None = None
    if not polls:
        try:
            if follows:
                topic = LiveOffsetsTopic(client_config, group_id, since_ms, progress)
                return AtOnce(topic.history, topic.notes, topic)
            return AtOnce(*read_offsets_topic(client_config, group_id, since_ms, progress))
        except OffsetsUnreadable as error:
            if polls is False:
                raise
            unreadable = error
    because = [] if unreadable is None else [str(unreadable)]
    try:
        polling = Polling(client_config, group_id)
    except HistoryUnavailable as error:
        raise HistoryUnavailable("; ".join([*because, str(error)])) from error
    if follows:
        return AtOnce(polling.history, [*polling.notes, *because], polling)
    tell(f"Polling the group for {WATCH_S} s; --follow goes on until Ctrl-C.")
    return _watched(polling, because)


def _watched(polling: Polling, because: list[str]) -> AtOnce:
    end_s = time.monotonic() + WATCH_S
    entries = polling.history.entries
    with closing(polling):
        while time.monotonic() < end_s:
            time.sleep(polling.interval_s)
            entries += polling.more()
        if not entries:
            raise HistoryUnavailable("; ".join([*because, polling.why_empty()]))
        return AtOnce(polling.history, [*polling.notes, *because])
