"""A group's history as it stands on the events topic now."""

import difflib
from collections.abc import Collection, Iterator

import structlog
from kafka import KafkaConsumer, TopicPartition

from insight.admin.directory import list_groups
from records.codec import UNREADABLE
from records.history import CoordinatorStarted, decode_any_entry
from records.layout import TopicLayout
from records.partitioner import partition_of
from records.truncation import AnyHistoryEntry

_POLL_MS = 500
# So many polls in a row that bring nothing, before the end: nobody sends any more.
_MAX_EMPTY_POLLS = 60
_LIST_TIMEOUT_MS = 30_000
_MAX_NEAR_NAMES = 5

log = structlog.get_logger()


class HistoryUnavailable(RuntimeError):
    """There is no history to tell of; the message says why, and what to try."""


def read_history(bootstrap_servers: str, layout: TopicLayout, group_id: str) -> list[AnyHistoryEntry]:
    """All entries of a group from the first that is kept to the last at the time of the call, as they stand
    on the topic: some may be there twice.

    Reads the whole of the group's partition. Raises HistoryUnavailable if the group is not known or nothing
    of it is kept, and KafkaError if no broker answers.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        allow_auto_create_topics=False,
        max_partition_fetch_bytes=layout.response_record_max_bytes,
        metrics_enabled=False,
    )
    try:
        place = TopicPartition(layout.events_topic, partition_of(group_id, layout.request_partitions))
        history = list(_entries(consumer, place, group_id))
    finally:
        consumer.close(autocommit=False)
    if not history:
        groups = {group.group_id for group in list_groups(bootstrap_servers, layout, _LIST_TIMEOUT_MS)}
        raise HistoryUnavailable(why_nothing(group_id, groups))
    return history


def why_nothing(group_id: str, groups: Collection[str]) -> str:
    """What to say of a group without history, `groups` being those there are."""
    if group_id in groups:
        return f"group {group_id} is there, but all of its history is older than the events topic's retention"
    near = near_names(group_id, groups)
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    return f"no group {group_id} is known, nor was one in the history that is kept{meant}"


def near_names(group_id: str, groups: Collection[str]) -> list[str]:
    """Group ids that might have been meant, the likeliest first."""
    close = difflib.get_close_matches(group_id, sorted(groups), n=_MAX_NEAR_NAMES)
    holding = [name for name in sorted(groups) if group_id.lower() in name.lower()]
    return list(dict.fromkeys([*close, *holding]))[:_MAX_NEAR_NAMES]


def _entries(consumer: KafkaConsumer, place: TopicPartition, group_id: str) -> Iterator[AnyHistoryEntry]:
    """The group's entries in this partition, up to its end of now."""
    key = group_id.encode()
    consumer.assign([place])
    end: int = consumer.end_offsets([place])[place]
    consumer.seek_to_beginning(place)
    empty_polls = 0
    while consumer.position(place) < end:
        records = consumer.poll(timeout_ms=_POLL_MS).get(place, [])
        empty_polls = 0 if records else empty_polls + 1
        if empty_polls == _MAX_EMPTY_POLLS:
            raise HistoryUnavailable(f"topic {place.topic} cannot be read to its end: nothing more comes")
        for record in records:
            if record.key == key and record.value is not None and record.offset < end:
                yield from _entry(record.value, group_id)


def _entry(value: bytes, group_id: str) -> Iterator[AnyHistoryEntry]:
    try:
        entry = decode_any_entry(value)
    except UNREADABLE as error:
        log.warning("a history entry cannot be read", group_id=group_id, error=str(error))
        return
    if entry is not None and not isinstance(entry, CoordinatorStarted):
        yield entry
