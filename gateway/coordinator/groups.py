"""The existing groups, read from the groups topic: those of Kafka, or those of RocketMQ.

Kafka's gateway lists no groups of RocketMQ, because Kafka's tools request the description, the offsets or the
deletion of every listed group, which the coordinator would refuse.
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
    decode_rocketmq_snapshot,
    decode_snapshot,
)
from kafka_why.contract.kafka.responses import ListedGroup
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.lifetimes import Closeable, OutageWarning
from kafka_why.partitioner import hash_of
from kafka_why.topic_reader import TopicReader

_POLL_MS = 200
_CLOSE_TIMEOUT_S = 10.0

log = structlog.get_logger()


class KnownGroup(ListedGroup, frozen=True, kw_only=True):
    """A group as the gateway caches it: the fields of ListGroups, and these."""

    id_hash: int  # of the group id
    incarnation: str = ""  # "" for a group that is not from the groups topic
    seq: int = 0  # the number of the last history entry included


def known_of(group: GroupSnapshot) -> KnownGroup:
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


class GroupsView(Protocol):
    """A view of all groups, which may lag behind the coordinator.

    The time that `groups` and `configured` take grows with the number of groups, so they must not run on the
    event loop.
    """

    @property
    def is_read(self) -> bool:
        """True if the reader has passed the end that the topic had when the reader started."""

    def groups(self) -> list[KnownGroup]:
        """Return the existing groups by id."""

    def configured(self) -> list[str]:
        """Return the sorted ids that have settings, even without a group."""

    def type_of(self, group_id: str) -> str | None:
        """Return the type of a group, or None if it does not exist or is unknown."""

    async def reach_end(self, timeout_s: float) -> bool:
        """Wait until the view has all records that are on the topic now. Return False if that takes
        longer.
        """


V = TypeVar("V", bound=Versioned)


class GroupsTopicReader(Closeable, Generic[V]):
    """A reader of the groups topic on its own thread.

    Its table has the groups for which `decode` returns a view. Raises KafkaError if no broker answers.
    """

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, decode: Callable[[bytes], V | None]
    ) -> None:
        self._table = GroupTable(decode)
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        """Notified when `_positions` change or the reader closes."""
        self._positions: dict[TopicPartition, int] = {}
        self._closing = threading.Event()
        self._caught_up = threading.Event()
        self._client_config = client_config
        self._topic = TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes)
        # A TopicReader is for one thread, and the thread of `_topic` may be waiting for records. So a second
        # TopicReader, connected on first use, reads the topic's end on its own thread.
        self._end_reader: TopicReader | None = None
        self._end_reader_thread = ThreadPoolExecutor(1, "gateway-groups-end")
        self._partitions = self._topic.partitions_of(layout.groups_topic)
        self._topic.start(beginning=self._partitions)
        self._ends = self._topic.ends(self._partitions)
        self._reader = threading.Thread(target=self._read, name="gateway-groups", daemon=True)
        self._reader.start()

    @property
    def is_read(self) -> bool:
        """True if the reader has passed the end that the topic had when the reader started."""
        return self._caught_up.is_set()

    def groups(self) -> list[V]:
        """Return the existing groups by id."""
        with self._lock:
            return self._table.groups

    def get(self, group_id: str) -> V | None:
        """Return a group, or None, without the lock, which `groups` holds for long."""
        return self._table.get(group_id)

    async def reach_end(self, timeout_s: float) -> bool:
        """Wait, in a worker thread, until the reader has all records that are on the topic now."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._end_reader_thread, self._reach_end, timeout_s)

    def close(self) -> None:
        """Stop the threads and close the connections."""
        self._closing.set()
        with self._moved:
            self._moved.notify_all()
        self._end_reader_thread.shutdown()
        self._reader.join(_CLOSE_TIMEOUT_S)
        self._topic.close()
        if self._end_reader is not None:
            self._end_reader.close()

    def _read(self) -> None:
        warning = OutageWarning("reading the groups")
        while not self._closing.is_set():
            try:
                self._apply(self._topic.poll(_POLL_MS))
                positions = self._topic.positions(self._partitions)
                with self._moved:
                    self._positions = positions
                    self._moved.notify_all()
                if not self._caught_up.is_set() and _has_reached(positions, self._ends):
                    self._caught_up.set()
                warning.worked()
            except KafkaError as error:
                warning.failed(error)
                self._closing.wait(1.0)

    def _reach_end(self, timeout_s: float) -> bool:
        give_up_s = time.monotonic() + timeout_s
        try:
            ends = self._end_offsets(timeout_s)
        except KafkaError as error:
            log.warning("the end of the groups topic is not known", error=repr(error))
            return False
        with self._moved:
            self._moved.wait_for(
                lambda: self._closing.is_set() or _has_reached(self._positions, ends),
                give_up_s - time.monotonic(),
            )
            return _has_reached(self._positions, ends)

    def _end_offsets(self, timeout_s: float) -> dict[TopicPartition, int]:
        if self._end_reader is None:
            self._end_reader = TopicReader(self._client_config, timeout_ms=round(timeout_s * 1000))
        return self._end_reader.ends(self._partitions)

    def _apply(self, records: Iterable[Any]) -> None:
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

    def configured(self) -> list[str]:
        """Return the sorted ids that have settings."""
        with self._lock:
            return [found.group_id for found in self._configs.groups]

    def type_of(self, group_id: str) -> str | None:
        """Return the type of an existing group, or None."""
        found = self.get(group_id)
        return None if found is None else found.group_type

    def _apply_record(self, key: bytes | None, value: bytes | None) -> None:
        super()._apply_record(key, value)
        self._configs.apply(key, value)


def rocketmq_groups(client_config: ClientConfig, layout: TopicLayout) -> GroupsTopicReader[RocketMqSnapshot]:
    """Return a reader of RocketMQ's groups. Raises KafkaError if no broker answers."""
    return GroupsTopicReader(client_config, layout, decode_rocketmq_snapshot)


def _decode(value: bytes) -> KnownGroup | None:
    group = decode_snapshot(value)
    return None if group is None else known_of(group)


def _has_reached(positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> bool:
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())
