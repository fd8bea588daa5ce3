"""A group's history where nothing of ours was set up before: from `__consumer_offsets`, or by polling."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from kafka_why.connections.client_config import ClientConfig
from kafka_why.stored_log import Progress
from kafka_why.why.history import History, HistoryUnavailable, LiveSource
from kafka_why.why.live_sources import LiveOffsetsTopic, Polling
from kafka_why.why.offsets_topic import OffsetsUnreadable, read_offsets_topic

WATCH_S = 10
"""The time for which a group is polled if it is not followed."""


def read_at_once(
    client_config: ClientConfig,
    group_id: str,
    since_ms: int | None,
    progress: Progress,
    *,
    polls: bool | None,
    follows: bool,
    tell: Callable[[str], None],
) -> tuple[History, LiveSource | None]:
    """Return the history of a group, and where it goes on if it is followed. With `polls` True it is polled,
    with None only if `__consumer_offsets` is not readable. `tell` reports what takes time.

    Raises HistoryUnavailable, which names the right that is missing, and KafkaError.
    """
    because: list[str] = []
    if not polls:
        try:
            if not follows:
                return read_offsets_topic(client_config, group_id, since_ms, progress), None
            topic = LiveOffsetsTopic(client_config, group_id, since_ms, progress)
            return topic.history, topic
        except OffsetsUnreadable as error:
            if polls is False:
                raise
            because.append(str(error))
    try:
        polling = Polling(client_config, group_id)
    except HistoryUnavailable as error:
        raise HistoryUnavailable("; ".join([*because, str(error)])) from error
    if not follows:
        tell(f"Polling the group for {WATCH_S} s; --follow goes on until Ctrl-C.")
        _watch(polling, because)
    return replace(polling.history, notes=[*polling.notes, *because]), polling if follows else None


def _watch(polling: Polling, because: list[str]) -> None:
    """Poll for some time. Raises HistoryUnavailable if nothing was seen."""
    end_s = time.monotonic() + WATCH_S
    entries = polling.history.entries
    with closing(polling):
        while time.monotonic() < end_s:
            time.sleep(polling.interval_s)
            entries += polling.more()
        if not entries:
            raise HistoryUnavailable("; ".join([*because, polling.why_empty()]))
