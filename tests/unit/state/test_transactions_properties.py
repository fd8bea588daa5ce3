"""Offsets in transactions become committed if, and only if, their own transaction was committed.

The reference model knows which request belongs to which transaction. The core does not: it has positions in
the markers topic and epochs. Each rule of the core that is switched off here lets the model find a fault.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.config import CoordinatorConfig
from state.inputs import Outage
from state.kafka.group import Group
from state.kafka.offsets import transactions
from state.kafka.offsets.outcome import Outcome
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.examples import examples
from tests.harness.transaction_log import GROUP_ID, Truth, play

CONFIG = CoordinatorConfig()
ENDED_KEPT_MS = 15 * 60_000
UNSTABLE = 88
Partition = tuple[str, int]

logs = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 200))


@dataclass
class Held:
    """An accepted request: the number of its transaction, its position in the markers topic, its place in the
    log, and its offsets.
    """

    transaction: int
    position: int
    place: int
    offsets: dict[Partition, int]


@dataclass
class Reference:
    """What is committed and pending by the truth. It is given plain values, and uses nothing of the core."""

    truth: Truth
    committed: dict[Partition, tuple[int, int]] = field(default_factory=dict)  # the offset, its place
    held: list[Held] = field(default_factory=list)
    # By producer: the latest transaction that the group has seen end, and when.
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)

    def last_ended(self, transaction: int, at_ms: int) -> int:
        """The last transaction of the same producer that the group has seen end lately, -1 if none."""
        last, ended_at_ms = self.ended.get(self.truth.producer_of[transaction], (-1, 0))
        return last if at_ms - ended_at_ms <= ENDED_KEPT_MS else -1

    def mark(self, transaction: int | None, first_position: int, at_ms: int) -> None:
        of_it = [h for h in self.held if h.transaction == transaction and h.position >= first_position]
        if transaction is None or not of_it:
            return
        for entry in of_it if self.truth.is_committed[transaction] else ():
            for partition, offset in entry.offsets.items():
                if self.committed.get(partition, (0, -1))[1] < entry.place:
                    self.committed[partition] = (offset, entry.place)
        self.held = [h for h in self.held if h not in of_it]
        last = self.last_ended(transaction, at_ms)
        self.ended[self.truth.producer_of[transaction]] = (max(last, transaction), at_ms)

    def forget(self, partitions: set[Partition]) -> None:
        for partition in partitions:
            self.committed.pop(partition, None)
            for entry in self.held:
                entry.offsets.pop(partition, None)
        self.held = [entry for entry in self.held if entry.offsets]

    def fetched(self, partition: Partition, stable: bool) -> tuple[int, int]:
        """The offset and the error code."""
        if stable and any(partition in entry.offsets for entry in self.held):
            return -1, UNSTABLE
        return self.committed.get(partition, (-1, 0))[0], 0

    def end_group(self) -> None:
        self.committed, self.held, self.ended = {}, [], {}


@dataclass
class Checker:
    """Plays a log in the core, and compares each answer with the reference. Counts what it compared."""

    reference: Reference
    refused: int = 0
    unstable: int = 0
    committed: int = 0

    def follow(self, timeline: Timeline, row: Row, place: int) -> None:
        """`place` is the place of the row in the log."""
        timeline.apply(row)
        assert not timeline.faults
        for effects in timeline.take_effects():
            answer = next((r.response for r in effects.replies if r.response.request == row.request_id), None)
            # A pass that comes with the row may end the group before the row, or behind it.
            ended = [e for e in effects.history if e.type == "GroupDeleted"]
            if ended and ended[0].cause != row.request_id:
                assert not self.reference.held, "a group with pending offsets does not end by itself"
                self.reference.end_group()
            elif answer is not None or (
                type(row.request).__name__ == "TopicMetadata" and _causes(effects, row)
            ):
                self._compare(row, answer, place)

    def _compare(self, row: Row, answer: object, place: int) -> None:
        request, reference = row.request, self.reference
        match type(request).__name__:
            case "TxnOffsetCommit":
                transaction = reference.truth.transaction_of[row.request_id]
                assert transaction is not None
                is_over = transaction <= reference.last_ended(transaction, row.at_ms)
                assert bool(answer.error_code) == is_over, row.request_id  # type: ignore[attr-defined]
                self.refused += is_over
                if not is_over:
                    held = Held(transaction, request.txn_position, place, _offsets(request))  # type: ignore[union-attr]
                    reference.held.append(held)
            case "TransactionMarker":
                assert answer.error_code == 0  # type: ignore[attr-defined]
                before = len(reference.committed)
                transaction = reference.truth.transaction_of[row.request_id]
                reference.mark(transaction, request.first_position, row.at_ms)  # type: ignore[union-attr]
                self.committed += len(reference.committed) > before
            case "OffsetCommit":
                assert answer.error_code == 0  # type: ignore[attr-defined]
                for partition, offset in _offsets(request).items():
                    reference.committed[partition] = (offset, place)
            case _:
                self._compare_others(row, answer)

    def _compare_others(self, row: Row, answer: object) -> None:
        request, reference = row.request, self.reference
        match type(request).__name__:
            case "OffsetDelete":
                if not answer.error_code:  # type: ignore[attr-defined]
                    reference.forget(_named(request))
            case "TopicMetadata":
                reference.forget({(topic, p) for topic in request.topics for p in (0, 1)})  # type: ignore[union-attr]
            case "DeleteGroup":
                reference.end_group()
            case "OffsetFetch":
                self._compare_fetch(request, answer)

    def _compare_fetch(self, request: object, answer: object) -> None:
        fetched = {
            (topic.name, p.partition_index): (p.committed_offset, int(p.error_code))
            for topic in answer.topics  # type: ignore[attr-defined]
            for p in topic.partitions
        }
        named = self.reference.committed.keys() if request.topics is None else _named(request)  # type: ignore[attr-defined]
        stable = request.require_stable  # type: ignore[attr-defined]
        assert fetched == {partition: self.reference.fetched(partition, stable) for partition in named}
        self.unstable += sum(error == UNSTABLE for _, error in fetched.values())


def _causes(effects: object, row: Row) -> bool:
    return any(entry.cause == row.request_id for entry in effects.history)  # type: ignore[attr-defined]


def _offsets(request: object) -> dict[Partition, int]:
    return {
        (topic.name, p.partition_index): p.committed_offset
        for topic in request.topics  # type: ignore[attr-defined]
        for p in topic.partitions
    }


def _named(request: object) -> set[Partition]:
    return {(t.name, p) for t in request.topics for p in t.partition_indexes}  # type: ignore[attr-defined]


def check(seed: int, length: int, *, in_batches: bool = True) -> Checker:
    """Play a random log in batches, with the state encoded between them. Raises AssertionError."""
    rows, truth = play(seed, length, CONFIG)
    checker = Checker(Reference(truth))
    place_of = {row.request_id: n for n, row in enumerate(rows)}
    state: bytes | None = None
    for batch in batches.cut(rows, seed) if in_batches else [batches.Batch(rows, 0)]:
        timeline = Timeline(GROUP_ID, batches.decode(GROUP_ID, state), CONFIG, step=batches.checked_step)
        for row in batch.rows:
            checker.follow(timeline, row, place_of[row.request_id])
        state = batches.encode(timeline.group)
    group = batches.decode(GROUP_ID, state)
    offsets = group.offsets if isinstance(group, Group) else {}
    assert {(t, p): o.offset for t, held in offsets.items() for p, o in held.items()} == {
        partition: offset for partition, (offset, _) in checker.reference.committed.items()
    }
    assert not checker.reference.held
    assert group is None or (isinstance(group, Group) and group.pending == [])
    return checker


@given(logs)
@examples(200)
def test_what_is_committed_is_what_transactions_committed(log: tuple[int, int]) -> None:
    check(*log)


@given(logs)
@examples(50)
def test_outages_decide_nothing(log: tuple[int, int]) -> None:
    """Row TO18: entries have no deadlines, so an outage only lets requests be handled later."""
    rows, _ = play(*log, CONFIG)
    ends = []
    for outages in ([], [Outage(rows[n].at_ms, rows[n].at_ms + 1) for n in (len(rows) // 3,)]):
        timeline = Timeline(GROUP_ID, None, CONFIG, outages=outages)
        for row in rows:
            timeline.apply(row)
        ends.append({} if timeline.group is None else timeline.group.offsets)  # type: ignore[union-attr]
    assert [{t: {p: o.offset for p, o in held.items()} for t, held in end.items()} for end in ends] == [
        {t: {p: o.offset for p, o in held.items()} for t, held in ends[0].items()}
    ] * 2


def test_random_logs_reach_what_they_are_for() -> None:
    checkers = [check(seed, 150) for seed in range(40)]
    assert sum(checker.refused for checker in checkers) > 20
    assert sum(checker.unstable for checker in checkers) > 20
    assert sum(checker.committed for checker in checkers) > 20


def reached_whatever_the_position(entry: object, marker: object) -> bool:
    return entry.producer_id == marker.producer_id  # type: ignore[attr-defined, no-any-return]


def reached_from_the_beginning(entry: object, marker: object) -> bool:
    """A marker would also end the earlier transactions of its producer."""
    return (
        entry.producer_id == marker.producer_id  # type: ignore[attr-defined]
        and entry.txn_position <= marker.txn_position  # type: ignore[attr-defined]
    )


def by_the_marker_alone(_: int, __: int, ___: int, committed: bool) -> Outcome:
    return Outcome.COMMIT if committed else Outcome.ABORT


@pytest.mark.parametrize(
    ("rule", "without_it"),
    [
        ("is_reached", reached_whatever_the_position),
        ("is_reached", reached_from_the_beginning),
        ("is_over", lambda _, __: False),
        ("outcome_of", by_the_marker_alone),
        ("is_behind", lambda _, __: True),
    ],
    ids=["positions ignored", "first position ignored", "TO6 off", "epoch rules off", "TO12's order off"],
)
def test_a_rule_that_is_switched_off_is_found(
    monkeypatch: pytest.MonkeyPatch, rule: str, without_it: Callable[..., object]
) -> None:
    monkeypatch.setattr(transactions, rule, without_it)
    with pytest.raises(AssertionError):
        check_seeds(range(60))


def check_seeds(seeds: Sequence[int]) -> None:
    for seed in seeds:
        check(seed, 150)
