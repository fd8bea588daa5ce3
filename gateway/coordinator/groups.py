"""The groups there are, from the groups topic: what ListGroups tells.

RocketMQ's groups are left out. They are no groups to Kafka's clients, and administrators' tools go on to ask
for the description, the offsets or the deletion of whatever is listed, which here would be refused.
"""

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import structlog
from kafka.errors import KafkaError

from records.codec import UNREADABLE
from records.history import GroupTable, decode_snapshot
from records.layout import TopicLayout
from records.reader import TopicReader
from state.kafka.snapshot import GroupSnapshot

_POLL_MS = 200
_CLOSE_TIMEOUT_S = 10.0

# The groups there are; None until all that stood on the topic at the start is read.
Groups = Callable[[], list[GroupSnapshot] | None]

log = structlog.get_logger()


class GroupsReader:
    """Follows the groups topic on a thread of its own. Raises KafkaError where no broker answers."""

    def __init__(self, bootstrap_servers: str, layout: TopicLayout) -> None:
        self._table = GroupTable(decode_snapshot)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._caught_up = threading.Event()
        self._topic = TopicReader(bootstrap_servers, max_record_bytes=layout.response_record_max_bytes)
        partitions = self._topic.partitions_of(layout.groups_topic)
        self._topic.start(beginning=partitions)
        self._ends = self._topic.ends(partitions)
        self._reader = threading.Thread(target=self._read, name="gateway-groups", daemon=True)
        self._reader.start()

    def groups(self) -> list[GroupSnapshot] | None:
        """The groups there are now, by id; None until all that stood there at the start is read."""
        if not self._caught_up.is_set():
            return None
        with self._lock:
            return self._table.groups

    def close(self) -> None:
        """End the thread and the connection."""
        self._closing.set()
        self._reader.join(_CLOSE_TIMEOUT_S)
        self._topic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        while not self._closing.is_set():
            try:
                self._take(self._topic.poll(_POLL_MS))
                if not self._caught_up.is_set() and self._topic.has_read(self._ends):
                    self._caught_up.set()
            except KafkaError as error:
                log.warning("reading the groups failed, trying again", error=repr(error))
                self._closing.wait(1.0)

    def _take(self, records: Iterable[Any]) -> None:
        for record in records:
            try:
                with self._lock:
                    self._table.take(record.key, record.value)
            except UNREADABLE as error:
                log.warning("a group's record cannot be read", error=str(error))
