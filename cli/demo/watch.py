"""The parts of a story: its printed lines, a reader of the group's history, and the checks at its end."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeVar

from kafka_why.cli.output import show
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import HistoryReader, decode_any_entry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import decode_assignment
from kafka_why.errors import UserFacingError
from kafka_why.lifetimes import Closeable
from kafka_why.topic_reader import Record, TopicReader

PATIENCE_S = 300.0
"""The time limit of each wait. It is long, because a busy machine is slow, not wrong."""


class NotSeen(UserFacingError):
    """An expected event did not happen in time."""


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition of other processes. Raises NotSeen after PATIENCE_S."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
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
        """Print a line after the seconds from the story's start to `at_s` (s since the epoch), or to now."""
        show(f"{(time.time() if at_s is None else at_s) - self._started_s:8.1f} s  {text}")


def json_line(line: str) -> dict[str, Any]:
    """Return the JSON object in a child's line of output, or {}."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


T = TypeVar("T")
Find = Callable[[Sequence[HistoryEntry]], T | None]
"""Searches history entries. Returns None if they do not have the result yet."""


class HistoryWatch(Closeable):
    """A reader of a group's history. It adds each entry once to `entries`, and calls `show` with it."""

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
        deadline_s = time.monotonic() + timeout_s
        while (result := find(self.entries[since:])) is None:
            if time.monotonic() > deadline_s:
                last = self.entries[-1].type if self.entries else "none"
                raise NotSeen(f"{what}: not within {timeout_s:.0f} s (the last history entry is {last})")
            self._add(self._reader.poll())
        return result

    def catch_up(self) -> None:
        """Read what has been written so far."""
        self._add(self._reader.read_to(self._reader.ends(self._partitions)))

    def _add(self, records: Iterable[Record]) -> None:
        for record in records:
            entry = decode_any_entry(record.value)
            if not isinstance(entry, HistoryEntry) or entry.group_id != self._group_id:
                continue
            if self._history.is_new(entry):  # a batch that runs again writes its entries again
                self.entries.append(entry)
                self._show(entry)


def find_first(kind: EntryType) -> Find[HistoryEntry]:
    """Return a function that finds the first entry of this type, for `HistoryWatch.wait_for`."""
    return lambda entries: next((entry for entry in entries if entry.type is kind), None)


def find_removed(client_id: str) -> Find[HistoryEntry]:
    """Return a function that finds the removal of this client's member, for `HistoryWatch.wait_for`."""

    def find(entries: Sequence[HistoryEntry]) -> HistoryEntry | None:
        removals = (entry for entry in entries if entry.type is EntryType.MEMBER_REMOVED)
        return next((entry for entry in removals if client_of(entry.member_id or "") == client_id), None)

    return find


def find_stable(client_ids: Iterable[str]) -> Find[HistoryEntry]:
    """Return a function that finds the group's latest change of state, if that made the group Stable with
    exactly these clients' members. It is for `HistoryWatch.wait_for`.
    """
    wanted = sorted(client_ids)

    def find(entries: Sequence[HistoryEntry]) -> HistoryEntry | None:
        change = next((entry for entry in reversed(entries) if entry.from_state != entry.to_state), None)
        if change is None or change.type is not EntryType.STABLE:
            return None
        return change if sorted(map(client_of, change.assignments or {})) == wanted else None

    return find


def client_of(member_id: str) -> str:
    """Return the client id in a member id, without the hyphen and the UUID at the end."""
    return member_id[:-37]


def partitions_held(stable: HistoryEntry) -> dict[str, list[int]]:
    """Return the partitions by client id. The demo has only one topic."""
    return {
        client_of(member_id): [p.partition for p in decode_assignment(data).partitions] if data else []
        for member_id, data in (stable.assignments or {}).items()
    }


# The checks at the end of the demo.


_LEAVE_RULES = ("L2", "L6")  # rows of docs/rules.md: the member sent LeaveGroup


class DemoCheck(NamedTuple):
    """A claim about the demo, checked at its end, and the finding in words."""

    claim: str
    ok: bool  # the claim holds
    finding: str


def all_consumed(produced: Set[str], consumed: Mapping[str, int]) -> DemoCheck:
    """Check that every produced record reached a consumer. `consumed` counts how often."""
    missing = produced - consumed.keys()
    repeats = sum(times - 1 for times in consumed.values())
    finding = f"{len(produced)} produced, {len(missing)} of them not consumed, {repeats} consumed twice"
    return DemoCheck("every produced record was consumed", bool(produced) and not missing, finding)


def one_owner_each(entries: Sequence[HistoryEntry], partitions: int) -> DemoCheck:
    """Check that each partition had exactly one owner in every generation."""
    stable = [entry for entry in entries if entry.type is EntryType.STABLE]
    wrong_generations = [
        entry.generation
        for entry in stable
        if sorted(p for held in partitions_held(entry).values() for p in held) != list(range(partitions))
    ]
    finding = f"{len(stable)} generations of {partitions} partitions, wrong: {wrong_generations or 'none'}"
    claim = "each generation gave every partition to exactly one member"
    return DemoCheck(claim, bool(stable) and not wrong_generations, finding)


def only_expired(entries: Sequence[HistoryEntry], killed: str) -> DemoCheck:
    """Check that only the killed consumer expired."""
    expired = [e for e in entries if e.type is EntryType.MEMBER_REMOVED and e.rule not in _LEAVE_RULES]
    clients = [client_of(entry.member_id or "") for entry in expired]
    finding = ", ".join(clients) or "no member expired"
    return DemoCheck(f"the killed {killed} expired, and no other member did", clients == [killed], finding)


def broker_has_no_group(group_ids: Sequence[str]) -> DemoCheck:
    """Check that the broker's own coordinator has no group. `group_ids` are the groups that it lists."""
    finding = f"it lists {', '.join(group_ids) or 'none'}"
    return DemoCheck("the broker's own coordinator knows no group", not group_ids, finding)
