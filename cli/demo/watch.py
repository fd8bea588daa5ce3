"""A reader of the demo group's history on the events topic. Any client can read it in this way."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from cli.demo.narrator import NotSeen
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import HistoryReader, decode_entry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import decode_assignment
from kafka_why.lifetimes import Closeable
from kafka_why.topic_reader import Record, TopicReader

T = TypeVar("T")
Find = Callable[[Sequence[HistoryEntry]], T | None]


class HistoryWatch(Closeable):
    """The group's history so far, each entry once. `show` is called with each entry."""

    def __init__(
        self,
        client_config: ClientConfig,
        events_topic: str,
        group_id: str,
        show: Callable[[HistoryEntry], None],
    ) -> None:
        self.entries: list[HistoryEntry] = []
        self._group_id = group_id
        self._show = show
        self._history = HistoryReader(from_start=True)
        self._reader = TopicReader(client_config)
        self._partitions = self._reader.partitions_of(events_topic)
        self._reader.start(beginning=self._partitions)

    def close(self) -> None:
        self._reader.close()

    def wait_for(self, what: str, find: Find[T], timeout_s: float, *, since: int = 0) -> T:
        """Call `find` with the entries from number `since` on until it returns a result. Return the result.

        Raises NotSeen, with `what` in the message, after `timeout_s`.
        """
        give_up_s = time.monotonic() + timeout_s
        while (found := find(self.entries[since:])) is None:
            if time.monotonic() > give_up_s:
                last = self.entries[-1].type if self.entries else "none"
                raise NotSeen(f"{what}: not within {timeout_s:.0f} s (the last history entry is {last})")
            self._add(self._reader.poll())
        return found

    def catch_up(self) -> None:
        """Read what has been written so far."""
        self._add(self._reader.read_to(self._reader.ends(self._partitions)))

    def _add(self, records: Iterable[Record]) -> None:
        for record in records:
            entry = decode_entry(record.value)
            if not isinstance(entry, HistoryEntry) or entry.group_id != self._group_id:
                continue
            if self._history.is_new(entry):  # a batch that runs again writes its entries again
                self.entries.append(entry)
                self._show(entry)


def first(kind: EntryType) -> Find[HistoryEntry]:
    """Return a function that finds the first entry of this type, for `HistoryWatch.wait_for`."""
    return lambda entries: next((entry for entry in entries if entry.type is kind), None)


def removed(client_id: str) -> Find[HistoryEntry]:
    """Return a function that finds the removal of this client's member, for `HistoryWatch.wait_for`."""

    def find(entries: Sequence[HistoryEntry]) -> HistoryEntry | None:
        gone = (entry for entry in entries if entry.type is EntryType.MEMBER_REMOVED)
        return next((entry for entry in gone if client_of(entry.member_id or "") == client_id), None)

    return find


def stable_with(client_ids: Iterable[str]) -> Find[HistoryEntry]:
    """Return a function that finds a Stable entry with exactly these clients' members.

    It is for `HistoryWatch.wait_for`. The group must not have changed its state since.
    """
    wanted = sorted(client_ids)

    def find(entries: Sequence[HistoryEntry]) -> HistoryEntry | None:
        last = next((entry for entry in reversed(entries) if entry.from_state != entry.to_state), None)
        if last is None or last.type is not EntryType.STABLE:
            return None
        return last if sorted(map(client_of, last.assignments or {})) == wanted else None

    return find


def client_of(member_id: str) -> str:
    """Return the client id of a member id, which a hyphen and a UUID follow."""
    return member_id[:-37]


def partitions_held(stable: HistoryEntry) -> dict[str, list[int]]:
    """Return the partitions of the one topic, by client id."""
    return {
        client_of(member_id): [p.partition for p in decode_assignment(data).partitions] if data else []
        for member_id, data in (stable.assignments or {}).items()
    }
