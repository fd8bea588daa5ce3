"""Offsets in transactions become committed if, and only if, their own transaction was committed.

The reference model knows which request belongs to which transaction. The core does not: it has positions in
the markers topic and epochs. Each rule of the core that is switched off here lets the model find a fault.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import EntryType, MarkerOutcome
from kafka_why.contract.kafka.requests import (
    CommittedTopic,
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicMetadata,
    TopicPartitions,
    TransactionMarker,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import AnyResponse, OffsetFetchResponse, TxnOffsetCommitResponse
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.kafka import commits
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.common import kafka_effects
from tests.harness.examples import examples
from tests.harness.transaction_log import GROUP_ID, Truth, play

CONFIG = CoordinatorConfig()
ENDED_KEPT_MS = 15 * 60_000
UNSTABLE = 88
# A group that is deleted, or was never there, is none to delete from.
EXPECTED = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
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
        """Return the last transaction of the same producer that the group has seen end lately, -1 if none."""
        last, ended_at_ms = self.ended.get(self.truth.producer_of[transaction], (-1, 0))
        return last if at_ms - ended_at_ms <= ENDED_KEPT_MS else -1

    def is_given_up(self, transaction: int, position: int, at_ms: int) -> bool:
        """Return True if the transaction has ended, or a later request of its producer came first."""
        producer = self.truth.producer_of[transaction]
        is_overtaken = any(
            self.truth.producer_of[h.transaction] == producer and h.position > position for h in self.held
        )
        return is_overtaken or transaction <= self.last_ended(transaction, at_ms)

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
        """Return the offset and the error code."""
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
        for effects in kafka_effects(timeline.drain_effects()):
            answer = next((r.response for r in effects.replies if r.response.request == row.request_id), None)
            ended = [entry.cause for entry in effects.history if entry.type is EntryType.GROUP_DELETED]
            if ended and ended != [row.request_id]:
                assert not self.reference.held, "a group with pending offsets does not end by itself"
                self.reference.end_group()
            elif answer is not None:
                assert isinstance(answer, TxnOffsetCommitResponse) or answer.error_code in EXPECTED
                self._compare(row, answer, place)
        if isinstance(row.request, TopicMetadata):
            self.reference.forget({(topic, p) for topic in row.request.topics for p in (0, 1)})

    def _compare(self, row: Row, answer: AnyResponse, place: int) -> None:
        request, reference = row.request, self.reference
        match request:
            case TxnOffsetCommit():
                transaction = reference.truth.transaction_of[row.request_id]
                assert transaction is not None
                is_given_up = reference.is_given_up(transaction, request.txn_position, row.at_ms)
                assert bool(answer.error_code) == is_given_up, row.request_id
                self.refused += is_given_up
                if not is_given_up:
                    offsets = _offsets(request.topics)
                    reference.held.append(Held(transaction, request.txn_position, place, offsets))
            case TransactionMarker():
                before = len(reference.committed)
                transaction = reference.truth.transaction_of[row.request_id]
                reference.mark(transaction, request.first_position, row.at_ms)
                self.committed += len(reference.committed) > before
            case OffsetCommit():
                for partition, offset in _offsets(request.topics).items():
                    reference.committed[partition] = (offset, place)
            case OffsetDelete():
                reference.forget(_named(request.topics))
            case DeleteGroup():
                reference.end_group()
            case OffsetFetch():
                assert isinstance(answer, OffsetFetchResponse)
                self._compare_fetch(request, answer)

    def _compare_fetch(self, request: OffsetFetch, answer: OffsetFetchResponse) -> None:
        fetched = {
            (topic.name, p.partition_index): (p.committed_offset, int(p.error_code))
            for topic in answer.topics
            for p in topic.partitions
        }
        named = self.reference.committed.keys() if request.topics is None else _named(request.topics)
        assert fetched == {p: self.reference.fetched(p, request.require_stable) for p in named}
        self.unstable += sum(error == UNSTABLE for _, error in fetched.values())


def _offsets(topics: Sequence[CommittedTopic]) -> dict[Partition, int]:
    return {(topic.name, p.partition_index): p.committed_offset for topic in topics for p in topic.partitions}


def _named(topics: Sequence[TopicPartitions]) -> set[Partition]:
    return {(topic.name, p) for topic in topics for p in topic.partition_indexes}


def check(seed: int, length: int) -> Checker:
    """Play a random log in batches, with the state encoded between them. Raises AssertionError."""
    rows, truth = play(seed, length, CONFIG)
    checker = Checker(Reference(truth))
    place_of = {row.request_id: n for n, row in enumerate(rows)}
    state: bytes | None = None
    for batch in batches.cut(rows, seed):
        timeline = Timeline(GROUP_ID, batches.decode(GROUP_ID, state), CONFIG, step=batches.checked_step)
        for row in batch.rows:
            checker.follow(timeline, row, place_of[row.request_id])
        state = batches.encode(timeline.group)
    group = batches.decode(GROUP_ID, state)
    offsets = group.offsets if isinstance(group, ClassicGroup) else {}
    assert {(t, p): o.offset for t, held in offsets.items() for p, o in held.items()} == {
        partition: offset for partition, (offset, _) in checker.reference.committed.items()
    }
    assert not checker.reference.held
    assert group is None or (isinstance(group, ClassicGroup) and group.pending == [])
    return checker


@given(logs)
@examples(100)
def test_committed_offsets_are_those_of_committed_transactions(log: tuple[int, int]) -> None:
    check(*log)


def test_random_transaction_logs_reach_every_outcome() -> None:
    checkers = [check(seed, 150) for seed in range(40)]
    assert sum(checker.refused for checker in checkers) > 20
    assert sum(checker.unstable for checker in checkers) > 20
    assert sum(checker.committed for checker in checkers) > 20


@pytest.mark.parametrize(
    ("rule", "without_it"),
    [
        ("is_reached", lambda entry, marker: entry.producer_id == marker.producer_id),
        # A marker would also end the earlier transactions of its producer.
        (
            "is_reached",
            lambda entry, marker: (
                entry.producer_id == marker.producer_id and entry.txn_position <= marker.txn_position
            ),
        ),
        ("is_transaction_over", lambda _, __: False),
        ("is_overtaken", lambda _, __: False),
        ("outcome_of", lambda *told: MarkerOutcome.COMMIT if told[-1] else MarkerOutcome.ABORT),
        ("is_later_in_log", lambda _, __: True),
    ],
    ids=[
        "positions ignored",
        "first position ignored",
        "TO6 off",
        "TO6 off for what is pending",
        "epoch rules off",
        "TO12's order off",
    ],
)
def test_disabled_transaction_rule_is_detected(
    monkeypatch: pytest.MonkeyPatch, rule: str, without_it: Callable[..., object]
) -> None:
    monkeypatch.setattr(commits, rule, without_it)
    with pytest.raises(AssertionError):
        for seed in range(60):
            check(seed, 150)
