"""Reads the coordinator's topics for the demo, as any client could."""

import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from kafka.errors import KafkaTimeoutError

from assignors.kafka.consumer_protocol import decode_assignment
from connections.client_config import ClientConfig
from records.early_answers import is_by_query, that_count
from records.history import HistoryReader, Numbered, decode_entry
from records.reader import Record, TopicReader
from state.kafka.history import EntryType, HistoryEntry

_POLL_MS = 100
_READ_TIMEOUT_MS = 60_000

T = TypeVar("T")
E = TypeVar("E", bound=Numbered)


class NotSeen(RuntimeError):
    """An expected event did not happen in time."""


class Watch(Generic[E]):
    """A thread that follows one group's history. `wait_for` waits for an entry.

    `decode` decodes a record of the events topic; it returns None for a record that is no entry of that
    protocol's groups.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        events_topic: str,
        group_id: str,
        decode: Callable[[bytes], E | None],
    ) -> None:
        self._group_id = group_id
        self._decode = decode
        self._history = HistoryReader(from_start=True)
        self._events: list[E] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._topic = TopicReader(client_config)
        self._topic.start(beginning=self._topic.partitions_of(events_topic))
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._topic.close()

    def mark(self) -> int:
        """Return the present number of entries, so that `wait_for` can skip them."""
        return len(self._events)

    def wait_for(
        self, what: str, find: Callable[[Sequence[E]], T | None], timeout_s: float, *, since: int = 0
    ) -> T:
        """Call `find` with the entries from number `since` on until its result is not None, and return it.

        Raises NotSeen, with `what` in the message, after `timeout_s`.
        """
        found: T | None = None

        def look() -> bool:
            nonlocal found
            found = find(self._events[since:])
            return found is not None

        with self._changed:
            if not self._changed.wait_for(look, timeout_s):
                last = self._events[-1].type if self._events else "none"
                raise NotSeen(f"{what}: not within {timeout_s:.0f} s (the last history entry is {last})")
        assert found is not None
        return found

    def _run(self) -> None:
        while not self._stopping.is_set():
            values = [record.value for record in self._topic.poll(_POLL_MS)]
            if values:
                self._add(values)

    def _add(self, values: Iterable[bytes]) -> None:
        entries = [self._decode(value) for value in values]
        ours = [e for e in entries if e is not None and e.group_id == self._group_id]
        with self._changed:
            self._events += [event for event in ours if self._history.is_new(event)]
            self._changed.notify_all()


def kafka_entry(value: bytes) -> HistoryEntry | None:
    """Decode an entry of one of Kafka's groups, for `Watch`."""
    entry = decode_entry(value)
    return entry if isinstance(entry, HistoryEntry) else None


def read_all(client_config: ClientConfig, topic: str) -> list[bytes]:
    """Return the values of all records of a topic, each partition's in order. Raises NotSeen on a timeout."""
    return [record.value for record in _records(client_config, topic)]


class Responses(NamedTuple):
    """The values of the records of the responses topic: the query's, and early ones that count."""

    by_query: list[bytes]
    early: list[bytes]


def read_responses(client_config: ClientConfig, topic: str) -> Responses:
    """Read the responses topic as `read_all` does."""
    found = Responses([], [])
    for record in that_count(_records(client_config, topic)):
        (found.by_query if is_by_query(record.headers) else found.early).append(record.value)
    return found


def _records(client_config: ClientConfig, topic: str) -> list[Record]:
    with TopicReader(client_config) as reader:
        try:
            return list(reader.read_all(topic, timeout_ms=_READ_TIMEOUT_MS))
        except KafkaTimeoutError as error:
            raise NotSeen(f"reading all of {topic}: not within {_READ_TIMEOUT_MS} ms") from error


def stable_with(names: Iterable[str]) -> Callable[[Sequence[HistoryEntry]], HistoryEntry | None]:
    """Return a function for `Watch.wait_for`: it finds a Stable entry with exactly these clients' members."""
    wanted = sorted(names)

    def find(events: Sequence[HistoryEntry]) -> HistoryEntry | None:
        last = next((e for e in reversed(events) if e.from_state != e.to_state), None)
        if last is None or last.type is not EntryType.STABLE:
            return None
        return last if sorted(map(client_of, last.assignments or {})) == wanted else None

    return find


def client_of(member_id: str) -> str:
    """Return the client id of a member id: the part before the hyphen and the UUID."""
    return member_id[:-37]


def held(stable: HistoryEntry) -> dict[str, list[int]]:
    """Return the partitions of the one topic that each client holds, by client id."""
    return {
        client_of(member_id): [p.partition for p in decode_assignment(data).partitions] if data else []
        for member_id, data in (stable.assignments or {}).items()
    }
