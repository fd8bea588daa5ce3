"""The checks at the end of the demo, which use only the records of the topics."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from msgspec import Struct

from cli.demo.strike import Struck
from cli.demo.watch import client_of, held
from clients.answers import decode_response
from records.history import CoordinatorStarted, HistoryReader, decode_any_entry
from records.pack import unpack
from state.kafka.classic_group import GroupState
from state.kafka.history import EntryType, HistoryEntry
from state.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from state.rocketmq.responses import ToConnection

AnyEntry = HistoryEntry | RocketMqHistoryEntry | CoordinatorStarted


class Check(Struct, frozen=True):
    """A claim (`name`), whether it holds (`ok`), and the finding (`detail`)."""

    name: str
    ok: bool
    detail: str


@dataclass(slots=True)
class History:
    """The content of the events topic.

    `entries` has each entry once, in the log's order. `duplicates` counts repeated entries. `gaps` has the
    missing sequence numbers by group id and incarnation.
    """

    entries: list[AnyEntry] = field(default_factory=list)
    duplicates: int = 0
    gaps: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    """Entries that were written twice with different content."""

    def of(self, group_id: str) -> list[HistoryEntry]:
        return [e for e in self.entries if isinstance(e, HistoryEntry) and e.group_id == group_id]

    def of_rocketmq(self, group_id: str) -> list[RocketMqHistoryEntry]:
        return [e for e in self.entries if isinstance(e, RocketMqHistoryEntry) and e.group_id == group_id]


def read_history(values: Iterable[bytes]) -> History:
    """Read the history from the values of all records of the events topic, each partition's in order."""
    history, reader = History(), HistoryReader(from_start=True)
    first: dict[tuple[str, str, int], bytes] = {}
    for value in values:
        entry = decode_any_entry(value)
        if isinstance(entry, HistoryEntry | RocketMqHistoryEntry):
            key = (entry.group_id, entry.incarnation, entry.seq)
            if first.setdefault(key, value) != value:
                history.conflicts.append(f"{entry.group_id} {entry.incarnation} entry {entry.seq}")
            if not reader.is_new(entry):
                continue
        if entry is not None:
            history.entries.append(entry)
    history.duplicates, history.gaps = reader.duplicates, reader.gaps
    return history


@dataclass(slots=True)
class Answers:
    """The content of the responses topic: how often the query answered each request, by request id."""

    by_request: Counter[str] = field(default_factory=Counter)
    early: int = 0
    """The number of early answers."""
    conflicts: list[str] = field(default_factory=list)
    """Requests that got two different answers."""

    @property
    def duplicates(self) -> int:
        return self.by_request.total() - len(self.by_request)


def read_answers(values: Iterable[bytes], early: Iterable[bytes] = ()) -> Answers:
    """Read the answers from the values of all records of the responses topic, the query's and the early ones.
    Notifications do not count.
    """
    answers = Answers()
    first: dict[str, bytes] = {}
    for request, encoded in _answers(values):
        answers.by_request[request] += 1
        if first.setdefault(request, encoded) != encoded:
            answers.conflicts.append(request)
    for request, encoded in _answers(early):
        answers.early += 1
        if first.setdefault(request, encoded) != encoded:
            answers.conflicts.append(request)
    return answers


def _answers(values: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    for encoded in (encoded for value in values for encoded in unpack(value)):
        message = decode_response(encoded)
        if not isinstance(message, ToConnection):
            yield message.request, encoded


def all_consumed(acknowledged: Set[str], consumed: Mapping[str, int]) -> Check:
    """Every produced record reached a consumer."""
    missing = acknowledged - consumed.keys()
    again = sum(n - 1 for n in consumed.values())
    detail = f"{len(acknowledged)} produced, {len(missing)} of them not consumed, {again} consumed twice"
    return Check("every produced record was consumed", bool(acknowledged) and not missing, detail)


def one_owner_each(events: Sequence[HistoryEntry], partitions: int) -> Check:
    """In every generation each partition had exactly one owner."""
    stable = [e for e in events if e.type is EntryType.STABLE]
    wrong = [
        e.generation
        for e in stable
        if sorted(p for held_ in held(e).values() for p in held_) != list(range(partitions))
    ]
    detail = f"{len(stable)} generations of {partitions} partitions"
    if wrong:
        detail += f"; wrong in generation {', '.join(map(str, wrong))}"
    return Check(
        "each generation gave every partition to exactly one member", bool(stable) and not wrong, detail
    )


def only_expired(events: Sequence[HistoryEntry], killed: str) -> Check:
    """The killed consumer was removed when its session expired, and no other member was removed."""
    removed = [e for e in events if e.type is EntryType.MEMBER_REMOVED and not _left(e)]
    names = [client_of(e.member_id or "") for e in removed]
    detail = (
        "; ".join(f"{client_of(e.member_id or '')}: {e.reason}" for e in removed) or "no member was removed"
    )
    return Check(f"the killed {killed} expired, and no other member did", names == [killed], detail)


def _left(event: HistoryEntry) -> bool:
    return event.rule in ("L2", "L6")  # rows of docs/rules.md: the member sent LeaveGroup


def broker_knows_no_group(group_ids: Sequence[str]) -> Check:
    """The real broker's own coordinator has no group. `group_ids` are the groups that it lists."""
    detail = f"it lists {', '.join(group_ids) or 'none'}"
    return Check("the real broker itself knows no group", not group_ids, detail)


def no_gaps(history: History) -> Check:
    """The history has every sequence number of every incarnation."""
    missing = [f"{group}: {numbers}" for (group, _), numbers in history.gaps.items()]
    entries = sum(not isinstance(e, CoordinatorStarted) for e in history.entries)
    return Check(
        "the history has no gap",
        entries > 0 and not missing,
        f"{entries} entries, missing: {missing or 'none'}",
    )


def history_told_once(history: History) -> Check:
    """An entry that was written twice has the same content both times."""
    detail = f"{history.duplicates} entries repeated, different: {history.conflicts or 'none'}"
    return Check("repeated history entries are identical", not history.conflicts, detail)


def answered_one_way(answers: Answers) -> Check:
    """A request that was answered twice, or early, too, got the same bytes each time."""
    detail = (
        f"{len(answers.by_request)} requests, {answers.early} answered early, "
        f"{answers.duplicates} answers repeated, different: {answers.conflicts or 'none'}"
    )
    return Check(
        "no request got two different answers", bool(answers.by_request) and not answers.conflicts, detail
    )


def killed_while_rebalancing(state: str) -> Check:
    """The first kill hit a rebalance. `state` is the group's state on the events topic when the coordinator
    was frozen for the kill.
    """
    return Check(
        "the coordinator was killed while the group was rebalancing",
        state == GroupState.PREPARING_REBALANCE,
        f"the last history entry before its next start says {state}",
    )


def killed_before_commit(struck: Struck | None) -> Check:
    """The second kill hit between the write of a batch's output and the batch's commit.

    `struck` is None if it did not.
    """
    detail = "no kill hit that moment"
    if struck is not None:
        detail = (
            f"batch {struck.batch} had answered {struck.request} ({struck.answer}), "
            "its commit was not in the checkpoint"
        )
    return Check(
        "the coordinator was killed between a batch's output and its commit", struck is not None, detail
    )


def ran_again(struck: Struck | None, answers: Answers, last_commit: int) -> Check:
    """That batch ran once more after the restart, and was committed."""
    if struck is None:
        return Check("that batch ran again", False, "no kill hit that moment")
    times = answers.by_request[struck.request]
    ok = times >= 2 and last_commit >= struck.batch
    return Check(
        "that batch ran again",
        ok,
        f"{struck.request} was answered {times} times; last commit is {last_commit}",
    )
