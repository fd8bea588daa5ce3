"""The assignments of a history: what is decoded, and how often."""

import pytest
from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    TopicPartition,
    decode_assignment,
    encode_assignment,
)
from kafka_why.why import moves as assignments_module
from kafka_why.why.moves import Assignments
from tests.unit.kafka_why.page_facts import played
from tests.unit.kafka_why.why_story import STORY


def t(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def of(*numbers: int) -> bytes:
    return encode_assignment(Assignment(tuple(sorted(t(*numbers)))))


def stable(seq: int, assigned: dict[str, bytes] | None) -> HistoryEntry:
    entry = next(entry for entry in played(*STORY) if entry.type is EntryType.STABLE)
    return replace(entry, seq=seq, assignments=assigned)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return what has been decoded since the beginning of the test."""
    seen: list[bytes] = []

    def counted(data: bytes) -> Assignment:
        seen.append(data)
        return decode_assignment(data)

    monkeypatch.setattr(assignments_module, "decode_assignment", counted)
    return seen


def test_assignments_are_read_only_if_all_are_a_consumers() -> None:
    read = Assignments()
    assert read.holdings(stable(1, {"a": of(1), "b": b""})) == {"a": t(1), "b": frozenset()}
    assert read.holdings(stable(2, {"a": of(1), "b": b"for b"})) is None
    assert read.holdings(stable(3, None)) is None
    assert [read.numbers(stable(seq, None)) for seq in (1, 2, 3)] == [{"a": 1, "b": 0}, None, None]
