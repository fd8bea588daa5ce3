"""Sources of new entries of a group (the events topic, `__consumer_offsets`, or polls), and their printer.

The sources implement `LiveSource`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import structlog
from kafka import TopicPartition
from kafka.errors import GroupAuthorizationFailedError, KafkaError
from msgspec import structs

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import AnyHistoryEntry, HistoryReader
from kafka_why.contract.kafka.history import BY_EPOCHS, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.groups.list_groups import list_broker_groups
from kafka_why.lifetimes import OutageWarning
from kafka_why.now import now_ms
from kafka_why.observed.polled import ClassicPoll, PolledGroup, RebalanceDetector
from kafka_why.partitioner import partition_of
from kafka_why.stored_log import Progress
from kafka_why.topic_reader import TopicReader
from kafka_why.why.history import History, HistoryUnavailable, LiveSource, entry_in, no_history_text
from kafka_why.why.model import Rebalance, RebalanceOutcome
from kafka_why.why.offsets_topic import OffsetsTopic, OffsetsUnreadable, read_offsets_topic
from kafka_why.why.polls import GroupPoller, polling_client
from kafka_why.why.report import HistoryAnalysis, analyze
from kafka_why.why.text import rebalance_text
from kafka_why.wording import Clock, VisibleText, count, visible, visible_text

NOT_SEEN_BY_POLLS = (
    "Polls do not show earlier events, why a rebalance began, whether a member left or expired, or members "
    "and rebalances that come and go between two polls; offsets committed before the first poll count as "
    "committed at that time, and generations are counted from 0 unless a member reports one"
)
_FOREVER_MS = 2**62

log = structlog.get_logger()


class LiveHistory:
    """A source of new entries on the events topic of a coordinator or an observer."""

    interval_s = 0.0  # `more` itself waits for records

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, group_id: str) -> None:
        self._group_id = group_id
        self._reader = TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes)
        partition = TopicPartition(layout.events_topic, partition_of(group_id, layout.request_partitions))
        self._reader.start(at=self._reader.ends([partition]))

    def more(self) -> list[AnyHistoryEntry]:
        key = self._group_id.encode()
        records = [record for record in self._reader.poll() if record.key == key and record.value is not None]
        return [entry for record in records for entry in entry_in(record.value, self._group_id)]

    def close(self) -> None:
        self._reader.close()


class LiveOffsetsTopic:
    """A source of new entries on the group's partition of `__consumer_offsets`.

    Raises HistoryUnavailable and KafkaError. A classic group is also polled by DescribeGroups, because its
    records show a rebalance only when it is over. `history` has the entries up to the start.
    """

    interval_s = 0.5

    def __init__(
        self, client_config: ClientConfig, group_id: str, since_ms: int | None, progress: Progress
    ) -> None:
        with ExitStack() as stack:
            self._topic = stack.enter_context(OffsetsTopic(client_config))
            self._records = self._topic.read_recent(group_id, since_ms, progress)
            self.history = self._records.history
            if self._records.group is None and not self.history.entries:
                raise HistoryUnavailable(self._topic.no_history_text(group_id))
            admin = stack.enter_context(closing(polling_client(client_config)))
            self._poller: GroupPoller | None = GroupPoller(admin, group_id)
            self._records.entries = []  # they are in `history`
            self._detector = RebalanceDetector()
            self._clock = BrokersClock()
            self._stack = stack.pop_all()

    def more(self) -> list[AnyHistoryEntry]:
        poll, records, walk = None, self._records, self._records.walk
        # A group with epochs is not polled.
        if self._poller is not None and (records.group is None or records.group.epochs is None):
            try:
                poll = self._poller.describe()
            except GroupAuthorizationFailedError:
                log.warning("without DESCRIBE on the group, rebalances are shown when they are over")
                self._poller = None
        requested_ms, offset_before = now_ms(), walk.next_offset
        self._topic.read_new_records(records)
        has_new_records = walk.next_offset > offset_before
        self._clock.apply_read(walk.last_ms if has_new_records else None, requested_ms, now_ms())
        if isinstance(poll, ClassicPoll) and records.group is not None and records.group.classic is not None:
            # Records have the brokers' time, so the poll's times are converted to it.
            poll = poll.shifted(-self._clock.ahead_ms)
            rebalance = self._detector.apply(poll, records.group.classic.since_ms)
            if rebalance is not None:
                records.apply_poll(rebalance)
        new, records.entries = records.entries, []
        return [*new]

    def close(self) -> None:
        self._stack.close()


class BrokersClock:
    """An estimate of the difference between this machine's clock and the brokers' clocks.

    A new record was appended after the previous read was requested and before the current one was answered.
    So its timestamp bounds the difference. `ahead_ms` is the difference closest to 0 within all bounds.
    """

    def __init__(self) -> None:
        self._last_requested_ms: int | None = None  # of the previous read
        self._min_ahead_ms, self._max_ahead_ms = -_FOREVER_MS, _FOREVER_MS

    @property
    def ahead_ms(self) -> int:
        """The time by which this machine's clock is ahead of the brokers', negative if it is behind."""
        return min(max(0, self._min_ahead_ms), self._max_ahead_ms)

    def apply_read(self, appended_ms: int | None, requested_ms: int, answered_ms: int) -> None:
        """Apply a read. `appended_ms` is the newest record's timestamp, or None if no record was new.

        `requested_ms` and `answered_ms` are this machine's times before and after the read.
        """
        if appended_ms is not None and self._last_requested_ms is not None:
            self._min_ahead_ms = max(self._min_ahead_ms, self._last_requested_ms - appended_ms)
            self._max_ahead_ms = min(self._max_ahead_ms, answered_ms - appended_ms)
        self._last_requested_ms = requested_ms


class Polling:
    """A source of new entries from polls of the group, for principals that may not read `__consumer_offsets`.

    The constructor polls for the first time. It raises HistoryUnavailable if the group does not exist or the
    principal may not describe it, and KafkaError.
    """

    interval_s = 1.0
    history: History  # the entries of the first poll

    def __init__(self, client_config: ClientConfig, group_id: str) -> None:
        self._group_id = group_id
        self._admin = polling_client(client_config)
        self._poller = GroupPoller(self._admin, group_id)
        self._polled = PolledGroup(group_id)
        self._since_ms = now_ms()
        self._state: str | None = None  # at the last poll; None if the group did not exist
        try:
            entries = self.more()
        except GroupAuthorizationFailedError as error:
            self.close()
            raise HistoryUnavailable(
                f"this principal may not describe group {group_id}. Grant the right with: kafka-acls.sh "
                f"--bootstrap-server {client_config} --add --allow-principal User:NAME "
                f"--operation Describe --group {group_id}"
            ) from error
        if self._state is None:
            self.close()
            other_groups = {row.group for row in list_broker_groups(client_config)} - {group_id}
            raise HistoryUnavailable(no_history_text(group_id, other_groups))
        self.history = History(entries, unread=frozenset(), from_start=False, records_read=0)

    @property
    def notes(self) -> list[str]:
        """A list of one note: the number of polls, and what polls do not show."""
        polls, since = count(self._polled.polls, "poll"), Clock().time(self._since_ms)
        return [f"from {polls} since {since}. {NOT_SEEN_BY_POLLS}"]

    def more(self) -> list[AnyHistoryEntry]:
        poll = self._poller.describe()
        committed = {} if poll is None else self._poller.committed()
        self._state = None if poll is None else poll.state
        self._polled.apply(poll, committed, now_ms())
        new, self._polled.entries = self._polled.entries, []
        return [*new]

    def why_empty(self) -> str:
        """Return the reason why there is no entry yet."""
        return f"group {self._group_id} is {self._state}, and the polls saw no change"

    def close(self) -> None:
        self._admin.close()


POLLING_S = 10
"""The time in seconds for which a group is polled without `--follow`."""


def read_with_live_source(
    client_config: ClientConfig,
    group_id: str,
    since_ms: int | None,
    progress: Progress,
    *,
    polls: bool | None,
    follows: bool,
    notify: Callable[[str], None],
) -> tuple[History, LiveSource | None]:
    """Return the history of a group and, if `follows`, the source of its new entries.

    If `polls` is True, the group is polled. If it is False, only `__consumer_offsets` is read. If it is None,
    the group is polled only if `__consumer_offsets` is not readable. `notify` is called with a message before
    a long wait. Raises KafkaError, and HistoryUnavailable with the name of the missing right.
    """
    reasons: list[str] = []  # why `__consumer_offsets` is not readable, if it was tried
    if not polls:
        try:
            if not follows:
                return read_offsets_topic(client_config, group_id, since_ms, progress), None
            topic = LiveOffsetsTopic(client_config, group_id, since_ms, progress)
            return topic.history, topic
        except OffsetsUnreadable as error:
            if polls is False:
                raise
            reasons.append(str(error))
    try:
        polling = Polling(client_config, group_id)
    except HistoryUnavailable as error:
        raise HistoryUnavailable("; ".join([*reasons, str(error)])) from error
    if not follows:
        notify(f"Polling the group for {POLLING_S} s; --follow continues until Ctrl-C.")
        _poll_for_a_while(polling, reasons)
    return replace(polling.history, notes=[*polling.notes, *reasons]), polling if follows else None


def _poll_for_a_while(polling: Polling, reasons: list[str]) -> None:
    """Poll for POLLING_S seconds, and add the new entries to the history.

    Raises HistoryUnavailable, with `reasons` first, if no poll saw a change.
    """
    end_s = time.monotonic() + POLLING_S
    entries = polling.history.entries
    with closing(polling):
        while time.monotonic() < end_s:
            time.sleep(polling.interval_s)
            entries += polling.more()
        if not entries:
            raise HistoryUnavailable("; ".join([*reasons, polling.why_empty()]))


def entry_line(event: AnyHistoryEntry) -> str:
    """Return one history entry as a line of text."""
    if isinstance(event, RocketMqHistoryEntry):
        client = f" [{event.client_id}]" if event.client_id else ""
        return f"{time_of_day(event.at_ms)}  {event.group_id}  {event.type}{client}: {event.reason}"
    change = f" ({event.from_state} -> {event.to_state})" if event.from_state != event.to_state else ""
    member = f" [{event.member_id}]" if event.member_id else ""
    generation = "epoch" if event.group_type in BY_EPOCHS else "generation"
    return (
        f"{time_of_day(event.at_ms)}  {event.group_id}  {generation} {event.generation}  "
        f"{event.type}{change}{member}: {event.reason}"
    )


def time_of_day(at_ms: float) -> str:
    """Return the local time of day, to the millisecond."""
    at_s, ms = divmod(int(at_ms), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(at_s))}.{ms:03}"


_ENTRIES_MAX = 20_000  # in memory, for the next analysis
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
        self._shown = len(ended)  # number of the rebalances in `_entries` that were printed
        # The number of the rebalance before the first one in `_entries`; negative if the report omitted some.
        self._number_before = -sum((r.ended_ms or r.began_ms) < (since_ms or 0) for r in ended)

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
            self._drop_old_entries()

    def _show_rebalances(self, analysis: HistoryAnalysis) -> None:
        """Show the rebalances that have ended since the last call."""
        ended = _ended_rebalances(analysis)
        for number, rebalance in enumerate(ended[self._shown :], self._number_before + self._shown + 1):
            numbered = structs.replace(rebalance, number=number)
            if self._show_json is None:
                text = rebalance_text(numbered, now_ms(), Clock(), analysis.names)
                self._show(visible_text(["", text, ""]))
            else:
                self._show_json({"rebalance": numbered})
        self._shown = len(ended)

    def _drop_old_entries(self) -> None:
        """Bound the memory and the time of an analysis, however long the group is followed."""
        if len(self._entries) > _ENTRIES_MAX:
            del self._entries[: _ENTRIES_MAX // 2]
            remaining = len(_ended_rebalances(self._analysis()))
            self._number_before += self._shown - remaining
            self._shown = remaining

    def _analysis(self) -> HistoryAnalysis:
        return analyze(self._entries, unread=self._unread, from_start=False)


def _ended_rebalances(analysis: HistoryAnalysis) -> list[Rebalance]:
    return [r for r in analysis.rebalances if r.outcome is not RebalanceOutcome.UNDER_WAY]
