"""Reading of the groups and events topics: new, duplicate and missing entries, and the rendered view."""

from io import StringIO
from typing import Any

import msgspec
import pytest
from msgspec import structs
from rich.console import Console

from cli.live_view import render_groups
from kafka_why.contract.history_reader import (
    AnyView,
    CoordinatorStarted,
    GroupTable,
    HistoryReader,
    decode_any_entry,
    decode_any_snapshot,
    decode_snapshot,
)
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.lag.definitions import Partition
from kafka_why.wording import holdings
from state.rocketmq.protocol import snapshot as rocketmq_snapshot
from tests.harness.rocketmq_broker import Broker
from tests.unit.kafka_why.page_facts import member as facts_member
from tests.unit.kafka_why.page_facts import view


def event(seq: int, incarnation: str = "requests-0-1", group_id: str = "g", **fields: Any) -> HistoryEntry:
    given: dict[str, Any] = {
        "type": EntryType.MEMBER_ADDED,
        "at_ms": 1_700_000_000_123,
        "from_state": "Stable",
        "to_state": "Stable",
        "generation": 4,
        "reason": "a new member joined",
        "rule": "E4",
        "cause": "requests-0-9",
    }
    return HistoryEntry(version=1, group_id=group_id, incarnation=incarnation, seq=seq, **given | fields)


def member(member_id: str, *partitions: Partition) -> MemberSnapshot:
    """Return a member without the mark of one that has joined again, which the view would show."""
    return structs.replace(facts_member(member_id, *partitions), rejoined=False)


def snapshot(seq: int, incarnation: str = "requests-0-1", **fields: Any) -> GroupSnapshot:
    given: dict[str, Any] = {
        "at_ms": 1_000,
        "state_timestamp_ms": 1_000,
        "leader_id": "a",
        "members": [member("a", ("orders", 0)), member("b")],
        "last_rebalance_at_ms": 1_000,
        "last_rebalance_reason": "new member b joined",
    }
    return view("g", incarnation=incarnation, seq=seq, **given | fields)


@pytest.mark.parametrize(("from_start", "missing"), [(True, [1]), (False, [])])
def test_missing_history_number_is_a_gap_until_it_arrives(from_start: bool, missing: list[int]) -> None:
    """Where the history begins depends on where reading began."""
    reader = HistoryReader(from_start=from_start)
    for seq in (2, 5):
        reader.is_new(event(seq))
    assert reader.gaps == {("g", "requests-0-1"): [*missing, 3, 4]}
    assert [reader.is_new(event(3)) for _ in (1, 2)] == [True, False]
    assert reader.gaps == {("g", "requests-0-1"): [*missing, 4]}


def test_endless_history_reader_remembers_only_the_latest_group_incarnations() -> None:
    reader = HistoryReader(from_start=False, remembers=2)
    for group_id, seq in (("g", 3), ("h", 3), ("g", 4), ("i", 3)):
        assert reader.is_new(event(seq, group_id=group_id))
    assert reader.is_new(event(6)), "g has a gap now"
    assert reader.gaps == {("g", "requests-0-1"): [5]}
    assert not reader.is_new(event(6)), "g is remembered"
    assert reader.is_new(event(1, group_id="h")), "h is forgotten, so an old entry is new again"
    assert reader.is_new(event(1, group_id="j"))
    assert reader.gaps == {}, "g is forgotten with its gap"


def test_group_table_keeps_the_latest_view_of_each_group() -> None:
    table = GroupTable(decode_snapshot)

    def apply(view: GroupSnapshot | None) -> bool:
        return table.apply(b"g", None if view is None else msgspec.json.encode(view))

    assert [apply(snapshot(seq)) for seq in (2, 2, 1, 3)] == [True, False, False, True]
    assert table.duplicates == 2
    assert [group.seq for group in table.groups] == [3]
    assert apply(snapshot(1, "requests-0-8")), "another life of the group starts at 1"
    assert apply(None)
    assert not apply(None)
    assert table.groups == []


def test_group_table_includes_rocketmq_groups_only_if_it_decodes_both_protocols() -> None:
    kafkas: GroupTable[GroupSnapshot] = GroupTable(decode_snapshot)
    both: GroupTable[AnyView] = GroupTable(decode_any_snapshot)
    other = rocketmq_group()

    def apply(group_id: bytes, view: AnyView) -> None:
        kafkas.apply(group_id, msgspec.json.encode(view))
        both.apply(group_id, msgspec.json.encode(view))

    apply(b"g", snapshot(1))
    apply(b"r", other)
    assert kafkas.groups == [snapshot(1)]
    assert both.groups == [snapshot(1), other]
    apply(b"g", other)
    assert kafkas.groups == [], "the name is RocketMQ's now"
    assert both.groups == [other, other]


def rocketmq_group() -> RocketMqSnapshot:
    """Return a group with two connections of one client id, and one of another."""
    broker = Broker()
    for client_id, connection in (("A", "c1"), ("B", "c2"), ("A", "c3")):
        broker.heartbeat(client_id, connection, "orders")
    return rocketmq_snapshot(broker.group_now())


def test_views_are_decoded_strictly_and_unknown_kinds_are_ignored() -> None:
    assert decode_any_entry(msgspec.json.encode(event(1, deadline_ms=5))) == event(1, deadline_ms=5)
    started = b'{"type":"CoordinatorStarted","at_ms":5,"from_batch":2,"settings":{"group.max.size":3}}'
    assert decode_any_entry(started) == CoordinatorStarted(
        at_ms=5, from_batch=2, settings={"group.max.size": 3}
    )
    assert decode_any_entry(b'{"type":"SomethingNew"}') is None
    with pytest.raises(msgspec.DecodeError):
        decode_any_entry(b'{"type":"Stable","seq":"one"}')
    assert decode_snapshot(msgspec.json.encode(snapshot(7))) == snapshot(7)


@pytest.mark.parametrize(
    ("assignment", "protocol_type", "text"),
    [
        (b"", "consumer", "-"),
        (encode_assignment(Assignment(())), "consumer", "-"),
        (encode_assignment(Assignment((TopicPartition("orders", 3),))), "consumer", "orders 3"),
        (b"\x00", "consumer", "unreadable: version needs 2 bytes, but 1 are left (byte 0)"),
        (b"\x00\x01\x02", "connect", "3 bytes"),
    ],
)
def test_member_line_shows_the_assigned_partitions(assignment: bytes, protocol_type: str, text: str) -> None:
    assert holdings(assignment, protocol_type) == text


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, ["  a", "  b", "the partitions are left out: the record would be too large"]),
        ({"members": []}, ["the members are left out: the record would be too large"]),
        ({"members": [], "state": "Empty"}, []),
    ],
)
def test_live_view_notes_the_truncation_of_a_large_group(changes: dict[str, Any], shown: list[str]) -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_groups([structs.replace(snapshot(1), truncated=True, **changes)], [], "", 61_000))
    text = console.export_text()
    assert all(line in text for line in shown)
    assert ("left out" in text) == bool(shown)
    assert "orders 0" not in text and "b: -" not in text


def test_live_view_marks_client_ids_that_several_rocketmq_connections_share() -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_groups([snapshot(1), rocketmq_group()], [], "", 61_000))
    text = console.export_text()
    for shown in ("! A on c1, JAVA 0", "  B on c2, JAVA 0", "! A on c3, JAVA 0", "RocketMQ Online"):
        assert shown in text
    assert "2 clients, CLUSTERING: orders" in text
