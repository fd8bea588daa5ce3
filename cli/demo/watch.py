"""The history of the demo group as any client can read it, the lines of a story, and its last checks."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeVar

from kafka_why.cli.output import show
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import HistoryReader, decode_entry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import decode_assignment
from kafka_why.lifetimes import Closeable
from kafka_why.topic_reader import Record, TopicReader

# The printed lines of a story.


PATIENCE_S = 300.0
"""The time limit of each wait. It is long, because a busy machine is slow, not wrong."""


class NotSeen(RuntimeError):
    """An expected event did not happen in time."""


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition of other processes. Raises NotSeen after PATIENCE_S."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise NotSeen(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(0.2)


class Narrator:
    """A printer of the numbered steps of a story, with the seconds since its start."""

    def __init__(self) -> None:
        self._started_s = time.time()
        self._steps = 0

    def step(self, text: str) -> None:
        self._steps += 1
        show()
        show(f"{self._steps}. {text}")

    def say(self, text: str, at_s: float | None = None) -> None:
        """Print a line for now, or for `at_s` since the epoch."""
        show(f"{(time.time() if at_s is None else at_s) - self._started_s:8.1f} s  {text}")


def json_line(line: str) -> dict[str, Any]:
    """Return the JSON object in a child's line of output, or {}."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


# A reader of the demo group's history on the events topic.


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


# The checks at the end of the demo.


_LEFT = ("L2", "L6")  # rows of docs/rules.md: the member sent LeaveGroup


class DemoCheck(NamedTuple):
    """A claim, and the finding."""

    claim: str
    ok: bool  # the claim holds
    finding: str


def all_consumed(produced: Set[str], consumed: Mapping[str, int]) -> DemoCheck:
    """Check that every produced record reached a consumer. `consumed` counts how often."""
    missing = produced - consumed.keys()
    again = sum(times - 1 for times in consumed.values())
    finding = f"{len(produced)} produced, {len(missing)} of them not consumed, {again} consumed twice"
    return DemoCheck("every produced record was consumed", bool(produced) and not missing, finding)


def one_owner_each(entries: Sequence[HistoryEntry], partitions: int) -> DemoCheck:
    """Check that each partition had exactly one owner in every generation."""
    stable = [entry for entry in entries if entry.type is EntryType.STABLE]
    wrong = [
        entry.generation
        for entry in stable
        if sorted(p for held in partitions_held(entry).values() for p in held) != list(range(partitions))
    ]
    finding = f"{len(stable)} generations of {partitions} partitions, wrong: {wrong or 'none'}"
    claim = "each generation gave every partition to exactly one member"
    return DemoCheck(claim, bool(stable) and not wrong, finding)


def only_expired(entries: Sequence[HistoryEntry], killed: str) -> DemoCheck:
    """Check that only the killed consumer expired."""
    gone = [e for e in entries if e.type is EntryType.MEMBER_REMOVED and e.rule not in _LEFT]
    clients = [client_of(entry.member_id or "") for entry in gone]
    finding = ", ".join(clients) or "no member expired"
    return DemoCheck(f"the killed {killed} expired, and no other member did", clients == [killed], finding)


def broker_has_no_group(group_ids: Sequence[str]) -> DemoCheck:
    """Check that the broker's own coordinator has no group. `group_ids` are those that it lists."""
    finding = f"it lists {', '.join(group_ids) or 'none'}"
    return DemoCheck("the broker's own coordinator knows no group", not group_ids, finding)
