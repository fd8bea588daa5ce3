"""The thread that follows the events topic, from the position that was kept, and puts its rebalances out."""

from collections.abc import Collection, Iterable, Mapping

import structlog
from kafka import TopicPartition

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.history_reader import decode_entry
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.notify.filters import Filter
from kafka_why.notify.messages import Link, rebalance_message
from kafka_why.notify.outbox import Outbox, Position
from kafka_why.notify.rebalances import Rebalances
from kafka_why.now import now_ms
from kafka_why.page.fleet import WINDOW_MS
from kafka_why.topic_reader import FollowerThread, Record, TopicReader

_BROKER_TIMEOUT_MS = 5_000
_POLL_MS = 500

log = structlog.get_logger()


def ends_of(client_config: ClientConfig, layout: TopicLayout) -> dict[int, Position]:
    """Return the ends of the events topic. Raises KafkaError."""
    with TopicReader(client_config, timeout_ms=_BROKER_TIMEOUT_MS) as reader:
        ends = reader.ends(reader.partitions_of(layout.events_topic))
    return {partition.partition: Position(end, now_ms()) for partition, end in ends.items()}


class EventsFollower(FollowerThread):
    """Puts a message into the outbox for each rebalance that ended behind `positions` and is wanted, and the
    positions that it has reached. A partition without a position is new, and is read from its beginning.

    The entries of an hour before the positions are read too, because they say what led to the rebalances and
    what members had before. `told` are the ids of messages behind the positions that are not sent again. It
    reads no further while the outbox is full, and survives that no broker is there.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        outbox: Outbox,
        wanted: Filter,
        link: Link,
        *,
        positions: Mapping[int, Position],
        told: Collection[str],
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._outbox = outbox
        self._wanted = wanted
        self._link = link
        self._positions = dict(positions)
        self._told = told
        self._rebalances = Rebalances()
        self._has_context = False
        super().__init__("notify-events", "reading the events topic for notify")

    def _connect_and_follow(self) -> None:
        with TopicReader(
            self._client_config,
            max_record_bytes=self._layout.response_record_max_bytes,
            timeout_ms=_BROKER_TIMEOUT_MS,
        ) as reader:
            self._start(reader)
            is_open = self._outbox.put([], dict(self._positions))
            while is_open and not self._stopped.is_set():
                records = reader.poll(_POLL_MS)
                if records:
                    is_open = self._take(records)
                self._warning.worked()
            if not is_open:
                self._stopped.set()  # nothing can be told any more

    def _start(self, reader: TopicReader) -> None:
        """Find the positions of all partitions, and read on from there; at first from an hour before."""
        partitions = reader.partitions_of(self._layout.events_topic)
        beginnings, ends = reader.beginnings(partitions), reader.ends(partitions)
        at = {}
        for partition in partitions:
            begin, end = beginnings[partition], ends[partition]
            kept = self._positions.get(partition.partition, Position(begin, now_ms()))
            self._positions[partition.partition] = kept = within(partition, kept, begin, end)
            at[partition] = kept.offset
            if not self._has_context:
                found = reader.offsets_at([partition], kept.at_ms - WINDOW_MS)[partition]
                at[partition] = kept.offset if found is None else min(found, kept.offset)
        reader.start(at=at)
        self._has_context = True

    def _take(self, records: Iterable[Record]) -> bool:
        """Take records, and put out what they ended. Return False if the outbox was closed meanwhile."""
        for record in records:
            position = self._positions[record.partition]
            is_told = record.offset < position.offset
            entry = _entry(record)
            if entry is not None:
                self._rebalances.add(entry, is_told=is_told)
            if not is_told:
                self._positions[record.partition] = Position(record.offset + 1, record.timestamp)
        made = (rebalance_message(*ended, self._link) for ended in self._rebalances.ended())
        at_ms = now_ms()
        messages = [one for one in made if self._wanted.wants(one, at_ms) and one.id not in self._told]
        return self._outbox.put(messages, dict(self._positions))


def within(partition: TopicPartition, kept: Position, begin: int, end: int) -> Position:
    """Return the kept position, or the beginning, with a warning, if the partition does not have it."""
    if kept.offset > end:
        log.warning(
            "the events topic was made anew: it is read from its beginning", partition=partition.partition
        )
        return Position(begin, kept.at_ms)
    if kept.offset < begin:
        log.warning(
            "entries of the events topic were deleted before they were read: rebalances in them are not told",
            partition=partition.partition,
            entries=begin - kept.offset,
        )
        return Position(begin, kept.at_ms)
    return kept


def _entry(record: Record) -> HistoryEntry | None:
    """Return the entry of a group of Kafka's in a record, None if there is none."""
    try:
        entry = decode_entry(record.value or b"")
    except UNREADABLE as error:
        log.warning("a history entry cannot be read", offset=record.offset, error=str(error))
        return None
    return entry if isinstance(entry, HistoryEntry) else None
