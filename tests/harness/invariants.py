"""Invariants of a group between two steps. Tests check them after every step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import assert_never

from kafka_why.contract.kafka.history import DEAD, HistoryEntry
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import KafkaGroup
from state.kafka.share_group import ShareGroup
from tests.harness import classic_invariants, consumer_invariants, share_invariants


class InvariantError(AssertionError):
    """A fault of the coordinator: the group is in an illegal state."""


def check(group: KafkaGroup) -> None:
    """Raise InvariantError with the name of the first invariant that does not hold."""
    for name, holds in _of_its_protocol(group) + _of_every_group(group):
        if not holds:
            raise InvariantError(f"group {group.group_id!r}: {name}")


def _of_its_protocol(group: KafkaGroup) -> list[tuple[str, bool]]:
    match group:
        case ClassicGroup():
            return classic_invariants.invariants_of(group)
        case ConsumerGroup():
            return consumer_invariants.invariants_of(group)
        case ShareGroup():
            return share_invariants.invariants_of(group)
        case _:
            assert_never(group)


def _of_every_group(group: KafkaGroup) -> list[tuple[str, bool]]:
    pending = group.pending
    return [
        ("no topic has an empty set of offsets", all(group.offsets.values())),
        ("no entry of pending offsets is empty", all(e.offsets and all(e.offsets.values()) for e in pending)),
        (
            "pending offsets are in the log's order",
            all(before.position < entry.position for before, entry in pairwise(pending)),
        ),
        (
            "pending offsets have the position of their request",
            all(o.position == e.position for e in pending for of in e.offsets.values() for o in of.values()),
        ),
        ("the clock is not behind what has fired", group.clock_ms >= group.last_fired_ms),
    ]


def check_life(history: Sequence[HistoryEntry]) -> None:
    """Check the history of a group from its creation to its end, if it has ended."""
    assert [entry.seq for entry in history] == list(range(1, len(history) + 1))
    for before, after in pairwise(history):
        assert before.at_ms <= after.at_ms
        assert before.to_state == after.from_state != DEAD
        assert before.generation <= after.generation
