"""The existing groups, read from the groups topic: those of Kafka, or those of RocketMQ.

The gateway for Kafka's clients lists no groups of RocketMQ, because Kafka's tools request the description,
the offsets or the deletion of every listed group, which the coordinator would refuse.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import structlog
from kafka import TopicPartition
from kafka.errors import KafkaError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.history_reader import (
    GroupTable,
    Versioned,
    decode_configs,
    decode_snapshot,
)
from kafka_why.contract.kafka.responses import ListedGroup
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.partitioner import hash_of
from kafka_why.topic_reader import FollowerThread, TopicReader

_POLL_MS = 200

log = structlog.get_logger()


class KnownGroup(ListedGroup, frozen=True, kw_only=True):
    """A group as the gateway caches it: the fields of ListGroups, and the following fields."""

    id_hash: int  # of the group id
    # The id of this life of the group: a deleted group that is created again gets another one. "" for a group
    # that is not from the groups topic.
    incarnation: str = ""
    seq: int = 0  # the number of the group's latest history entry that this view includes


def to_known_group(group: GroupSnapshot) -> KnownGroup:
    """Return the cached form of a group on the groups topic."""
    return KnownGroup(
        group.group_id,
        group.state,
        group.protocol_type or "",
        group.group_type,
        id_hash=hash_of(group.group_id),
        incarnation=group.incarnation,
        seq=group.seq,
    )


V = TypeVar("V", bound=Versioned)


class TopicGroups(Protocol[V]):
    """A view of the groups on the groups topic, which may lag behind the coordinator.

    The time that `groups` takes grows with the number of groups, so it must not run on the event loop.
    """

    def groups(self) -> list[V]:
        """Return the existing groups by id."""

    def get(self, group_id: str) -> V | None:
        """Return a group, or None if the view has no such group."""

    async def reach_end(self, timeout_s: float) -> bool:
        """Wait until the view has all records that are on the topic now. Return False if that takes
        longer.
        """


class GroupsView(TopicGroups[KnownGroup], Protocol):
    """A view of Kafka's groups. `configured_group_ids` must not run on the event loop either."""

    @property
    def has_caught_up(self) -> bool:
        """True if the reader has passed the end that the topic had when the reader started."""

    def configured_group_ids(self) -> list[str]:
        """Return the sorted ids of groups that have settings, even of groups that do not exist."""


class GroupsTopicReader(FollowerThread, Generic[V]):
    """A reader of the groups topic on its own thread.

    Its table has the groups for which `decode` returns a view: it returns None for groups of other kinds.
    Raises KafkaError if no broker answers.
    """

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, decode: Callable[[bytes], V | None]
    ) -> None:
        self._table = GroupTable(decode)
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        """Notified when `_positions` change or the reader stops."""
        self._positions: dict[TopicPartition, int] = {}
        self.has_caught_up = False
        """True if the reader has passed the end that the topic had when the reader was created."""
        self._client_config = client_config
        self._topic = TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes)
        # A TopicReader is for one thread, and the thread of `_topic` may be waiting for records. So a second
        # TopicReader, connected on first use, reads the topic's end on its own thread.
        self._end_reader: TopicReader | None = None
        self._end_reader_thread = ThreadPoolExecutor(1, "gateway-groups-end")
        self._partitions = self._topic.partitions_of(layout.groups_topic)
        self._topic.start(beginning=self._partitions)
        self._ends_at_start = self._topic.ends(self._partitions)
        super().__init__("gateway-groups", "reading the groups")

    def groups(self) -> list[V]:
        """Return the existing groups by id."""
        with self._lock:
            return self._table.groups

    def get(self, group_id: str) -> V | None:
        """Return a group, or None if it is unknown. Takes no lock, because `groups` holds it for long."""
        return self._table.get(group_id)

    async def reach_end(self, timeout_s: float) -> bool:
        """Wait, in a worker thread, until the reader has all records that are on the topic now."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._end_reader_thread, self._reach_end, timeout_s)

    def stop(self) -> None:
        """Stop the threads and close the connections."""
        self._stopped.set()
        with self._progress:
            self._progress.notify_all()
        self._end_reader_thread.shutdown()
        super().stop()
        self._topic.close()
        if self._end_reader is not None:
            self._end_reader.close()

    def _connect_and_follow(self) -> None:
        while not self._stopped.is_set():
            self._apply(self._topic.poll(_POLL_MS))
            positions = self._topic.positions(self._partitions)
            with self._progress:
                self._positions = positions
                self._progress.notify_all()
            self.has_caught_up = self.has_caught_up or _has_reached(positions, self._ends_at_start)
            self._worked()

    def _reach_end(self, timeout_s: float) -> bool:
        """Wait until the reader has all records that are on the topic now. Runs in a worker thread."""
        give_up_s = time.monotonic() + timeout_s
        try:
            ends = self._end_offsets(timeout_s)
        except KafkaError as error:
            log.warning("the end of the groups topic is not known", error=repr(error))
            return False
        with self._progress:
            self._progress.wait_for(
                lambda: self._stopped.is_set() or _has_reached(self._positions, ends),
                give_up_s - time.monotonic(),
            )
            return _has_reached(self._positions, ends)

    def _end_offsets(self, timeout_s: float) -> dict[TopicPartition, int]:
        if self._end_reader is None:
            self._end_reader = TopicReader(self._client_config, timeout_ms=round(timeout_s * 1000))
        return self._end_reader.ends(self._partitions)

    def _apply(self, records: Iterable[Any]) -> None:
        """Apply records to the table. A record that cannot be read is skipped, with a warning."""
        for record in records:
            try:
                with self._lock:
                    self._apply_record(record.key, record.value)
            except UNREADABLE as error:
                log.warning("a group's record cannot be read", error=str(error))

    def _apply_record(self, key: bytes | None, value: bytes | None) -> None:
        self._table.apply(key, value)


class GroupsReader(GroupsTopicReader[KnownGroup]):
    """The groups of Kafka, and their settings."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        self._configs = GroupTable(decode_configs)
        super().__init__(client_config, layout, _decode)

    def configured_group_ids(self) -> list[str]:
        """Return the sorted ids of groups that have settings, even of groups that do not exist."""
        with self._lock:
            return [configs.group_id for configs in self._configs.groups]

    def _apply_record(self, key: bytes | None, value: bytes | None) -> None:
        super()._apply_record(key, value)
        self._configs.apply(key, value)


def _decode(value: bytes) -> KnownGroup | None:
    group = decode_snapshot(value)
    return None if group is None else to_known_group(group)


def _has_reached(positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> bool:
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())
