"""The demo's checks find the faults they exist for, and its waits end at the right entry."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.demo import watch
from cli.demo.load import count_consumed
from cli.demo.watch import find_stable, partitions_held
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from tests.unit.cli.test_live_view import event

UUID = "dd3ce9d5-1cf1-5738-98c8-e7d245d76648"


def stable(holdings: Mapping[str, tuple[int, ...]]) -> HistoryEntry:
    assignments = {
        f"{client}-{UUID}": encode_assignment(Assignment(tuple(TopicPartition("t", p) for p in numbers)))
        for client, numbers in holdings.items()
    }
    return event(1, type=EntryType.STABLE, from_state="CompletingRebalance", assignments=assignments)


def gone(client: str, rule: str) -> HistoryEntry:
    return event(1, type=EntryType.MEMBER_REMOVED, member_id=f"{client}-{UUID}", rule=rule)


@pytest.mark.parametrize(
    ("produced", "counts", "ok"),
    [
        ({"a", "b"}, {"a": 1, "b": 2}, True),
        ({"a", "b"}, {"a": 1}, False),
        ({"a", "b"}, {"a": 1, "b": 1, "c": 1}, True),
        (set(), {}, False),
    ],
)
def test_demo_check_fails_if_a_record_was_lost(produced: set[str], counts: dict[str, int], ok: bool) -> None:
    assert watch.all_consumed(produced, counts).ok is ok


@pytest.mark.parametrize(
    ("holdings", "ok"),
    [
        ([{"a": (0, 1), "b": (2,)}], True),
        ([{"a": (0, 1, 2), "b": ()}], True),
        ([{"a": (0, 1)}], False),
        ([{"a": (0, 1), "b": (1, 2)}], False),
        ([], False),
    ],
)
def test_demo_check_fails_unless_each_partition_has_one_owner(
    holdings: list[dict[str, tuple[int, ...]]], ok: bool
) -> None:
    assert watch.one_owner_each([stable(held) for held in holdings], 3).ok is ok


def test_demo_check_fails_if_another_consumer_expires() -> None:
    expired, left = gone("consumer-2", "T5"), gone("consumer-1", "L6")
    assert watch.only_expired([expired, left], "consumer-2").ok
    assert not watch.only_expired([left], "consumer-2").ok
    assert not watch.only_expired([expired, gone("consumer-3", "C1")], "consumer-2").ok


def test_find_stable_needs_exactly_these_members_in_the_last_state() -> None:
    find = find_stable(["a", "b"])
    both = stable({"a": (0,), "b": (1,)})
    assert find([both, event(1, type=EntryType.MEMBER_ADDED)]) is both
    assert partitions_held(both) == {"a": [0], "b": [1]}
    assert find([both, event(1, type=EntryType.PREPARING_REBALANCE, to_state="PreparingRebalance")]) is None
    assert find([stable({"a": (0,)})]) is None
    assert find([]) is None


def test_count_consumed_ignores_a_line_cut_short_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "consumer.jsonl"
    path.write_bytes(b'{"value":"a"}\n{"value":"b"}\n{"value":"a"}\n{"value":"c')
    assert count_consumed([path, tmp_path / "never-started.jsonl"]) == {"a": 2, "b": 1}
