"""Follows a group: shows each new entry as a line, and each rebalance after it has ended."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka.errors import KafkaError
from msgspec.structs import replace

from kafka_why.contract.history_reader import AnyHistoryEntry, HistoryReader
from kafka_why.contract.kafka.history import BY_EPOCHS, HistoryEntry
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.lifetimes import OutageWarning
from kafka_why.now import now_ms
from kafka_why.why.history import History, LiveSource
from kafka_why.why.model import Rebalance, RebalanceOutcome
from kafka_why.why.report import HistoryAnalysis, analyze
from kafka_why.why.text import rebalance_text
from kafka_why.wording import Clock, VisibleText, visible, visible_text


def entry_line(event: AnyHistoryEntry) -> str:
    """Return one history entry as a line of text."""
    if isinstance(event, RocketMqHistoryEntry):
        client = f" [{event.client_id}]" if event.client_id else ""
        return f"{clock(event.at_ms)}  {event.group_id}  {event.type}{client}: {event.reason}"
    change = f" ({event.from_state} -> {event.to_state})" if event.from_state != event.to_state else ""
    member = f" [{event.member_id}]" if event.member_id else ""
    generation = "epoch" if event.group_type in BY_EPOCHS else "generation"
    return (
        f"{clock(event.at_ms)}  {event.group_id}  {generation} {event.generation}  "
        f"{event.type}{change}{member}: {event.reason}"
    )


def clock(at_ms: float) -> str:
    """Return the local time of day, to the millisecond."""
    whole_s, ms = divmod(int(at_ms), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole_s))}.{ms:03}"


_ENTRIES_MAX = 20_000
_RETRY_S = 1.0


class Follower:
    """A printer of a group's new entries and rebalances, after a report on `history`.

    The numbers of the rebalances continue those of the report, which omits rebalances that ended before
    `since_ms`. `show` prints text. If `show_json` is given, it prints objects instead.
    """

    def __init__(
        self,
        history: History,
        since_ms: int | None,
        live: LiveSource,
        show: Callable[[VisibleText], None],
        show_json: Callable[[Any], None] | None = None,
    ) -> None:
        self._live = live
        self._show = show
        self._show_json = show_json
        self._reader = HistoryReader(from_start=False)
        self._entries = [e for e in history.entries if self._reader.is_new(e) and isinstance(e, HistoryEntry)]
        self._unread = history.unread
        ended = _ended_rebalances(self._analysis()) if self._entries else []
        self._shown = len(ended)
        self._dropped = -sum((r.ended_ms or r.began_ms) < (since_ms or 0) for r in ended)

    def run(self, stop: threading.Event) -> None:
        """Show new entries until `stop` is set. Retry while the brokers cannot be reached."""
        warning = OutageWarning("reading the group")
        while not stop.is_set():
            try:
                new = self._live.more()
            except KafkaError as error:
                warning.failed(error)
                stop.wait(_RETRY_S)
                continue
            warning.worked()
            self.add([entry for entry in new if self._reader.is_new(entry)])
            stop.wait(self._live.interval_s)

    def add(self, new: Sequence[AnyHistoryEntry]) -> None:
        """Show new entries, and the rebalances that end with them."""
        for entry in new:
            if self._show_json is None:
                self._show(visible(entry_line(entry)))
            else:
                self._show_json({"entry": entry})
        kafka_entries = [entry for entry in new if isinstance(entry, HistoryEntry)]
        self._entries += kafka_entries
        if kafka_entries:
            self._show_rebalances(self._analysis())
            self._forget()

    def _show_rebalances(self, analysis: HistoryAnalysis) -> None:
        ended = _ended_rebalances(analysis)
        for place, rebalance in enumerate(ended[self._shown :], self._shown + 1):
            numbered = replace(rebalance, number=self._dropped + place)
            if self._show_json is None:
                text = rebalance_text(numbered, now_ms(), Clock(), analysis.names)
                self._show(visible_text(["", text, ""]))
            else:
                self._show_json({"rebalance": numbered})
        self._shown = len(ended)

    def _forget(self) -> None:
        if len(self._entries) > _ENTRIES_MAX:
            del self._entries[: _ENTRIES_MAX // 2]
            still = len(_ended_rebalances(self._analysis()))
            self._dropped, self._shown = self._dropped + self._shown - still, still

    def _analysis(self) -> HistoryAnalysis:
        return analyze(self._entries, unread=self._unread, from_start=False)


def _ended_rebalances(analysis: HistoryAnalysis) -> list[Rebalance]:
    return [r for r in analysis.rebalances if r.outcome is not RebalanceOutcome.UNDER_WAY]
